"""Whether Python finds the same match as Postgres.

Whether there is a match, and where it begins, is the same in both. Where it ends is not: Postgres
takes the longest match, or the shortest if it is to be lazy, and Python the first one it meets.
They are the same if each character leaves one way to continue, and in a sequence of repetitions of
single characters: of two such ways the one that is ahead can always follow the other when that
one would overtake it.
"""

from __future__ import annotations

from collections.abc import Iterator

from millwheel.sql.functions.texts import character_sets as sets
from millwheel.sql.functions.texts.character_sets import Ranges
from millwheel.sql.functions.texts.regular_syntax import (
    END,
    Alternatives,
    At,
    Group,
    LookAround,
    One,
    Reference,
    RegularNode,
    Repeat,
    Sequence,
)

FEW = 3
"""Repetitions that may be tried in every way."""


def children(node: RegularNode) -> tuple[RegularNode, ...]:
    if isinstance(node, Sequence):
        return node.parts
    if isinstance(node, Alternatives):
        return node.branches
    return (node.inner,) if isinstance(node, Group | Repeat | LookAround) else ()


def walk(node: RegularNode) -> Iterator[RegularNode]:
    """A node and all that are inside of it."""
    yield node
    for child in children(node):
        yield from walk(child)


def is_nullable(node: RegularNode) -> bool:
    """Whether it can match the empty text."""
    if isinstance(node, One):
        return False
    if isinstance(node, Sequence):
        return all(map(is_nullable, node.parts))
    if isinstance(node, Alternatives):
        return any(map(is_nullable, node.branches))
    if isinstance(node, Group):
        return is_nullable(node.inner)
    if isinstance(node, Repeat):
        return not node.least or is_nullable(node.inner)
    return True


def first_of(node: RegularNode) -> Ranges:
    """The characters with which it can begin."""
    if isinstance(node, One):
        return node.ranges
    if isinstance(node, Sequence):
        found: Ranges = sets.NONE
        for part in node.parts:
            found = sets.united((*found, *first_of(part)))
            if not is_nullable(part):
                break
        return found
    if isinstance(node, Alternatives):
        return sets.united(each for branch in node.branches for each in first_of(branch))
    if isinstance(node, Group | Repeat):
        return first_of(node.inner)
    return sets.EVERY if isinstance(node, Reference) else sets.NONE


def _followed(node: RegularNode, follow: Ranges) -> Ranges:
    """The characters that can come first in `node` and after it."""
    first = first_of(node)
    return sets.united((*first, *follow)) if is_nullable(node) else first


def is_certain(node: RegularNode, follow: Ranges) -> bool:
    """Whether the next character always leaves one way to continue, if the rest begins with
    one of `follow`."""
    if isinstance(node, Sequence):
        for part in reversed(node.parts):
            if not is_certain(part, follow):
                return False
            follow = _followed(part, follow)
        return True
    if isinstance(node, Alternatives):
        return _chooses(node, follow) and all(is_certain(each, follow) for each in node.branches)
    if isinstance(node, Group):
        return is_certain(node.inner, follow)
    if isinstance(node, Repeat):
        first = first_of(node.inner)
        if node.least != node.most and sets.overlap(first, follow):
            return False
        return is_certain(node.inner, sets.united((*first, *follow)))
    return not isinstance(node, Reference)


def _chooses(node: Alternatives, follow: Ranges) -> bool:
    if any(map(is_nullable, node.branches[:-1])):
        # Python would be content with nothing.
        return False
    known = [_characters(branch) for branch in node.branches]
    if all(each is not None for each in known):
        return _have_no_common_head([each for each in known if each is not None])
    firsts = [_followed(branch, follow) for branch in node.branches]
    return not any(
        sets.overlap(one, other) for place, one in enumerate(firsts) for other in firsts[:place]
    )


def _characters(node: RegularNode) -> tuple[Ranges, ...] | None:
    """The sets of a sequence of single characters; None: it is another thing, or empty."""
    if isinstance(node, One):
        return (node.ranges,)
    if isinstance(node, Sequence) and node.parts:
        found = [part.ranges for part in node.parts if isinstance(part, One)]
        return tuple(found) if len(found) == len(node.parts) else None
    return None


def _have_no_common_head(branches: list[tuple[Ranges, ...]]) -> bool:
    """Whether no text can begin with two of the branches."""
    return not any(
        all(sets.overlap(a, b) for a, b in zip(one, other, strict=False))
        for place, one in enumerate(branches)
        for other in branches[:place]
    )


def _stages(node: RegularNode) -> Iterator[RegularNode]:
    """The parts of a sequence, without groups around them."""
    if isinstance(node, Sequence):
        for part in node.parts:
            yield from _stages(part)
    elif isinstance(node, Group):
        yield from _stages(node.inner)
    else:
        yield node


def _is_flat(stage: RegularNode) -> bool:
    """Whether it is a place, a character, or repetitions of a single one."""
    if isinstance(stage, Repeat):
        inner = stage.inner.inner if isinstance(stage.inner, Group) else stage.inner
        return isinstance(inner, One)
    return isinstance(stage, One | At | LookAround)


def has_same_extent(node: RegularNode) -> bool:
    """Whether Python's match and groups are proved to be those of Postgres."""
    repeats = [each for each in walk(node) if isinstance(each, Repeat)]
    choosing = [each for each in repeats if each.least != each.most]
    stages = list(_stages(node))
    if any(each.is_lazy for each in repeats):
        return all(each.is_lazy for each in choosing) and all(map(_is_flat, stages))
    has_end = _ends(stages)
    rest_is_flat, follow = True, sets.NONE
    for stage in reversed(stages):
        if not _is_flat(stage):
            rest_is_flat = False
            if not is_certain(stage, follow):
                return False
        elif not (rest_is_flat or has_end or is_certain(stage, follow)):
            return False
        follow = _followed(stage, follow)
    return True


def branches_of(node: RegularNode) -> list[RegularNode]:
    """For a choice, each branch as a choice in which the others never match; empty: it is none, or
    Python's match of a branch may be another one."""
    if not isinstance(node, Alternatives) or not all(map(has_same_extent, node.branches)):
        return []
    if any(isinstance(each, Repeat) and each.is_lazy for each in walk(node)):
        return []
    never = One(sets.NONE)
    return [
        Alternatives(tuple(
            branch if branch is chosen else Sequence((never, branch)) for branch in node.branches
        ))
        for chosen in node.branches
    ]  # fmt: skip


def _ends(stages: list[RegularNode]) -> bool:
    for stage in reversed(stages):
        if isinstance(stage, At) and stage.where == END:
            return True
        if not isinstance(stage, At | LookAround):
            return False
    return False


def can_explode(node: RegularNode) -> bool:
    """Whether repetitions inside of repetitions may have to be tried in very many ways."""
    for each in walk(node):
        if not isinstance(each, Repeat) or each.most == 1:
            continue
        is_often = each.most is None or each.most > FEW
        if is_nullable(each.inner) or (
            is_often and not is_certain(each.inner, first_of(each.inner))
        ):
            return True
    return False
