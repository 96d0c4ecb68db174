"""What makes a sum private: clipping, exact integer arithmetic, discrete Gaussian noise in shares."""
