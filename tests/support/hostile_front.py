"""The front, taken over."""

import os
import sys

from support.taken_over import take_over
from veilsum_node.process.confinement import Bounds

if __name__ == "__main__":
    real = take_over("veilsum_participant.front.__main__")
    status = real.main(int(sys.argv[1]), Bounds.from_text(sys.argv[2]))
    sys.stderr.flush()
    os._exit(status)
