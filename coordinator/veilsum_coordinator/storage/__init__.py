"""What a coordinator keeps, so that another process of it goes on where the last one was killed: journal, fence, outages."""
