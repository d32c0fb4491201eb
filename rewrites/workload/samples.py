"""Random lines of eight kinds of text, for kinds that a workload may lack, and for tests of a stated error."""

from collections.abc import Callable
from random import Random

SYLLABLES = (
    "ba co di fu gra hen in jo kel lum mar no or pre qui ros sta ter ul vin wex yer zan tion ment ing ous al".split()
)
WORDS = (
    "the of and a to in is that was for on with as by at from not are but had have an they which one you were all "
    "her she there would their we him been has when who will no more if out so up said what its about than into "
    "them can only other time new some could these two may first then do any like my now over such our man me "
    "even most made after also well"
).split()
SIGNS = (
    "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么"
    "心多天而能好都然没日于起还发成事只作当想看文无开手十用主行方又如前所本见经头面公同三已老从动两长"
)
IDENTIFIERS = "value count index total left right node path item key rows cols data next size".split()
SITES = "shop blog news wiki mail docs api cdn".split()


def make_word(rng: Random) -> str:
    """Make a word of one to four syllables."""
    return "".join(rng.choices(SYLLABLES, k=rng.randint(1, 4)))


def prose(rng: Random, words: int) -> str:
    """Return common words, one in four replaced by a random one."""
    return " ".join(make_word(rng) if rng.random() < 0.25 else rng.choice(WORDS) for _ in range(words))


def short(rng: Random) -> str:
    """Return an empty or blank line, a sign or two, or two words."""
    return rng.choice(
        (
            lambda: "",
            lambda: " " * rng.randint(1, 3),
            lambda: "".join(rng.choices(".,!?-…:;()", k=rng.randint(1, 2))),
            lambda: rng.choice(WORDS),
            lambda: prose(rng, 2),
        )
    )()


def url(rng: Random) -> str:
    """Make an address with a path, and half the time a query."""
    path = "/".join(make_word(rng) for _ in range(rng.randint(1, 4)))
    query = f"?{make_word(rng)}={rng.randint(0, 10**6)}" if rng.random() < 0.5 else ""
    return f"https://{rng.choice(SITES)}.{make_word(rng)}.{rng.choice(('com', 'org', 'net', 'io'))}/{path}{query}"


def digits(rng: Random) -> str:
    """Make one to six numbers or dates."""
    return " ".join(
        rng.choice(
            (
                f"{rng.randint(0, 10**9)}",
                f"{rng.uniform(-1e4, 1e4):.{rng.randint(1, 5)}f}",
                f"{rng.randint(1900, 2099)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
            )
        )
        for _ in range(rng.randint(1, 6))
    )


def chinese(rng: Random) -> str:
    """Make one to three clauses of Chinese signs."""
    return "，".join("".join(rng.choices(SIGNS, k=rng.randint(3, 12))) for _ in range(rng.randint(1, 3))) + "。"


def code(rng: Random) -> str:
    """Make a line of code in one of several languages."""
    a, b, c = rng.sample(IDENTIFIERS, 3)
    return rng.choice(
        (
            f"for {a} in range(len({b})): {c}[{a}] += {rng.randint(0, 99)}",
            f"if ({a} != NULL && {b}->{c} > 0) return {a};",
            f"def {make_word(rng)}({a}, {b}=None): return {a}.{c}({b})",
            f"const {a} = await fetch(`/{make_word(rng)}/${{{b}}}`);",
            f"SELECT {a}, {b} FROM {make_word(rng)} WHERE {c} = '{make_word(rng)}';",
            f"{a}.{b}({c}, {rng.random():.3f}) # {make_word(rng)}",
        )
    )


TEXT_KINDS: dict[str, Callable[[Random], str]] = {
    "single words": make_word,
    "empty and short": short,
    "URLs": url,
    "digits": digits,
    "Chinese": chinese,
    "code": code,
    "500 tokens": lambda rng: prose(rng, 330),
    "random ids": lambda rng: f"{rng.getrandbits(rng.choice((64, 128))):x}",
}


def make_lines(kind: str, count: int, seed: int = 0) -> list[str]:
    """Return `count` lines of a kind, the same for a seed on any machine."""
    rng = Random(f"{kind} {seed}")
    return [TEXT_KINDS[kind](rng) for _ in range(count)]
