"""
Weights on their way from trainer ranks to rollout instances, proved before they serve.

    hashes.py     the 64-bit hash of a segment, the same on every device
    delta.py      the codec: changed elements to bytes and back, in place
    snapshot.py   what a rank has published: bits, changes since, hashes
    publisher.py  a rank's end: serves its snapshot over TCP
    receiver.py   RaaS's end: fetches, checks, prepares in host memory
    ledger.py     who holds which version, and why one was refused
    protocol.py   the messages inside the frames
"""

from astraflow.weights.ledger import Ledger
from astraflow.weights.publisher import TcpPublisher
from astraflow.weights.receiver import TcpReceiver

__all__ = ["Ledger", "TcpPublisher", "TcpReceiver"]
