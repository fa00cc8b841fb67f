"""A program that takes messages and does no more: `python lazy_consumer.py URL TOPIC PREFETCH COUNT`.

It does not renew its leases, though it keeps the messages. It prints the offsets of the first COUNT messages. Then,
for each line on its stdin, it acks the first and prints what became of that.
"""

import sys

import linn.sync
from linn.core.errors.tree import LinnError

url, topic, prefetch, count = sys.argv[1:]
with linn.sync.connect(url, request_timeout_s=60) as client:
    with client.consumer(topic, prefetch=int(prefetch), renewal_max_s=0) as consumer:
        messages = [next(consumer) for _ in range(int(count))]
        print(*[message.offset for message in messages], flush=True)
        for _ in sys.stdin:
            try:
                messages[0].ack().wait()
                print("acked", flush=True)
            except LinnError as error:
                print(error.code, flush=True)
