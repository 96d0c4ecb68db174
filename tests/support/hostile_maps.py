"""A process of the kind ``maps``, taken over."""

import sys

from support.taken_over import take_over
from veilsum_node.process.confinement import Bounds

if __name__ == "__main__":
    take_over("veilsum_participant.worker.maps_main").main(int(sys.argv[1]), Bounds.from_text(sys.argv[2]))
