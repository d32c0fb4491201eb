"""What a composite is, from what its parts are: class facts as egglog rules. They describe the value a class denotes,
so they pass through an approximation from its original, never from its replacement. A `single` matrix is no stack of one for
each head. `halves` alone is about storage: a joined product leaves all heads of its first half, then all of its second."""

UNARY = ("linear", "single", "additive", "constant", "entrywise", "column", "level", "act", "given", "stacked", "halves")


def each(kind: str, *facts: str) -> list[str]:
    """Binary kinds that have a fact where both parts have it."""
    return [f"(rule ((= e (K_{kind} a b)) ({f} a) ({f} b)) (({f} e)) :ruleset facts)" for f in facts]


def any_of(kind: str, arguments: str, *parts: str) -> list[str]:
    """Kinds that depend on the input where one of the parts does."""
    return [f"(rule ((= e (K_{kind} {arguments})) (act {p})) ((act e)) :ruleset facts)" for p in parts]


FACTS = "\n".join([
    *each("compose", "linear", "single"),
    *each("add", "linear", "single", "constant", "column"),
    *each("mul", "constant", "column"),
    *each("row", "linear", "single", "constant"),
    *any_of("compose", "a b", "a"), *any_of("add", "a b", "a", "b"), *any_of("mul", "a b", "a", "b"),
    *any_of("product", "a b m w", "a", "b"), *any_of("turn", "a", "a"),
    *any_of("row", "a b", "a", "b"), *any_of("left", "a b", "a"), *any_of("right", "a b", "a"),
    """
(rule ((linear e)) ((additive e)) :ruleset facts)
(rule ((= e (K_I))) ((linear e)) :ruleset facts)
(rule ((= e (K_total))) ((additive e)) :ruleset facts)
(rule ((= e (K_heads n))) ((additive e)) :ruleset facts)
(rule ((= e (K_join n))) ((additive e)) :ruleset facts)
(rule ((= e (K_repeat n))) ((additive e)) :ruleset facts)
(rule ((= e (K_mul a c)) (linear a) (constant c)) ((linear e)) :ruleset facts)
(rule ((= e (K_compose a (K_heads n))) (linear a)) ((linear e)) :ruleset facts)
(rule ((= e (K_compose a (K_heads n))) (linear a)) ((stacked e)) :ruleset facts)
(rule ((= e (K_compose a b)) (stacked a) (linear b)) ((stacked e)) :ruleset facts)
(rule ((= e (K_compose a b)) (linear a) (stacked b)) ((stacked e)) :ruleset facts)
(rule ((= e (K_row a b)) (stacked a) (stacked b)) ((stacked e)) :ruleset facts)
(rule ((= e (K_adjoint a)) (linear a)) ((linear e)) :ruleset facts)
(rule ((= e (K_by_head a n)) (linear a)) ((linear e)) :ruleset facts)
(rule ((= e (K_blank a))) ((constant e)) :ruleset facts)
(rule ((= e (K_compose c a)) (constant c) (additive a)) ((constant e)) :ruleset facts)
(rule ((= e (K_compose c a)) (constant c) (entrywise a)) ((constant e)) :ruleset facts)
(rule ((= e (K_compose a f)) (column a) (entrywise f)) ((column e)) :ruleset facts)
(rule ((= e (K_compose a f)) (column f)) ((column e)) :ruleset facts)
(rule ((= e (K_product a (K_turn c) "sum" w)) (act a) (constant c)) ((level e)) :ruleset facts)
(rule ((= e (K_compose x (K_row a b))) (act x)) ((halves e)) :ruleset facts)
(rule ((= e (K_add y (K_row a b))) (halves y)) ((halves e)) :ruleset facts)
"""])

# Who reads products together, stated on the consumers: queries and keys, then both and values; keys and values alone where
# they are shared by groups of queries, as the heads of queries are more then.
MARKERS = """
(relation reads (Op Op Op))
(relation shares (Op Op))
(relation affine (Op Op Op))
(relation joinable (Op Op))
(rule ((= o (K_product s v m w)) (= s (K_product a (K_turn b) "sum" u)) (act s)) ((reads a b v)) :ruleset mark)
(rule ((= y (K_compose x A)) (act x) (stacked A)) ((affine y x A)) :ruleset mark)
(rule ((= y (K_add z c)) (= z (K_compose x A)) (act x) (stacked A) (constant c)) ((affine y x A)) :ruleset mark)
(rule ((= o (K_product s (K_compose v (K_repeat g)) m w)) (= s (K_product a (K_turn (K_compose b (K_repeat g))) "sum" u)) (act s))
      ((shares b v)) :ruleset mark)
(rule ((shares b v) (affine b x B) (affine v x C)) ((joinable B C)) :ruleset mark)
(rule ((reads a b v) (affine a x A) (affine b x B)) ((joinable A B)) :ruleset mark)
(rule ((reads a b v) (affine a x A) (affine b x B) (affine v x C)) ((joinable (K_row A B) C)) :ruleset mark)
"""
FACTS += MARKERS
