"""The primes below a bound that comes from the arguments, or from standard input."""

import asyncio
import sys


async def is_prime(n: int) -> bool:
    await asyncio.sleep(0)
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


async def main() -> None:
    bound = int(sys.argv[1]) if len(sys.argv) > 1 else int(sys.stdin.readline())
    found = [n for n in range(bound) if await is_prime(n)]
    print(f"{len(found)} primes below {bound}: {' '.join(map(str, found))}")


asyncio.run(main())
