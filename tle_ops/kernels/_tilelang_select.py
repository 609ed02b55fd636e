"""What a selection by a cluster of blocks is made of: keys, sums over a block, the search for a key, and the one thing
that TileLang has no word for, a read of another block's shared memory. Names for functions in CUDA (`_select_prelude`).

Keys are unsigned 32-bit integers in the order of the values: every NaN the greatest, -0.0 equal to 0.0; inverted if the
least are sought.
"""

import tilelang.language as T

INF_KEY = 0xFF800000
GREATEST = 0xFFFFFFFF


def u32(x):
    return T.cast(x, "uint32")


def pointer(buffer, at: int = 0):
    return T.address_of(buffer[at])


def peer(place, rank):
    """A uint32 at the same place of shared memory in the block `rank` of the cluster."""
    return T.call_extern("uint32", "tle_peer", T.address_of(place), rank)


def joined(listed, place, offsets):
    """An element of the lists of all blocks one behind the other. listed: of this block, shared, uint32; offsets: where
    each begins, and the end."""
    name = f"tle_joined<{offsets.shape[0] - 1}>"
    return T.call_extern("uint32", name, pointer(listed), place, pointer(offsets))


def exceeds(x, limit):
    """x > limit, NaN being the greatest; of a limit that is NaN, true."""
    return T.call_extern("bool", "tle_exceeds", x, limit)


def key_of(x, largest: bool):
    """x float32"""
    key = T.call_extern("uint32", "tle_key", x)
    return key if largest else ~key


def value_of(key, largest: bool):
    """The float32 of a key."""
    return T.call_extern("float32", "tle_value", key if largest else ~key)


def drawn_column(i, begin, end, strata: int, run: int):
    """A column of [begin, end) for the i-th thing drawn: `run` of them lie together, somewhere in one of so many equal
    strata, a power of two."""
    return T.call_extern("int32", f"tle_drawn<{strata}, {run}>", u32(i), u32(begin), u32(end))


def warp_sum(v):
    return T.call_extern("uint32", "__reduce_add_sync", T.uint32(GREATEST), v)


def warp_max(v):
    return T.call_extern("uint32", "__reduce_max_sync", T.uint32(GREATEST), v)


def ballot(flag):
    return u32(T.ballot_sync(flag))


def bits_set(word):
    return T.call_extern("int32", "__popc", word)


def within(word, first, begin, end):
    """Of a word of bits for columns from `first` on, those for [begin, end), where it is not all beyond the end."""
    return T.call_extern("uint32", "tle_within", word, first, begin, end)


def lowest_bit(word):
    """Where, from 0, the lowest set bit is; there is one."""
    return T.call_extern("int32", "__ffs", T.cast(word, "int32")) - 1


def warp_scan(v):
    """The sum of v over the lanes up to this one."""
    return T.call_extern("uint32", "tle_warp_scan", v)


def block_scan(v, total, totals, threads: int):
    """The sum of v over the threads before this one; total[0] = over all. totals: shared [warps]; whoever writes there
    again must have synchronized in between."""
    return T.call_extern("uint32", f"tle_block_scan<{threads}>", v, pointer(totals), pointer(total))


# The search: a range of keys [lo, hi] that holds the key sought, the `left`-th greatest in the range, and how many keys
# the range holds: s, registers, alike in all threads. In shared memory: hist, two bins a thread, zero before and after;
# totals [warps]; found [4], of which found[1] is GREATEST before find_bound and found[3] 0 before search.
LO, HI, LEFT, HELD = range(4)
STATE = 5  # words of s; the last is for `set_shift`


@T.macro
def start_search(s, lo, hi, left, held):
    s[LO] = lo
    s[HI] = hi
    s[LEFT] = left
    s[HELD] = held


def set_shift(s, bins: int):
    """To count keys of the range in so many bins."""
    return T.call_extern("void", f"tle_set_shift<{bins}>", pointer(s))


def count_key(s, key, hist):
    return T.call_extern("void", "tle_count", pointer(s), key, pointer(hist))


def clear(hist, bins: int):
    """This thread's two bins."""
    return T.call_extern("void", f"tle_clear<{bins}>", pointer(hist))


def narrow(s, upper, lower, totals, found, bins: int):
    """s becomes the bin of the key sought. upper, lower: what this thread's two bins hold, the first threads having the
    greatest keys. If the range holds fewer keys than are sought, it becomes all that is below it."""
    return T.call_extern("void", f"tle_narrow<{bins}>", pointer(s), upper, lower, pointer(totals), pointer(found))


def search(s, keys, count, hist, totals, found, tail, bins: int):
    """Until the range holds what is sought and no more, or is one key. keys: those of the range are among the first
    `count` of each thread. tail: shared [32]."""
    name = f"tle_search<{bins}, {keys.shape[0]}>"
    return T.call_extern("void", name, pointer(s), pointer(keys), count, *map(pointer, (hist, totals, found, tail)))


def find_bound(s, keys, rank, hist, totals, found, greatest, bins: int):
    """s[LO] = a key that at least the first `rank` of the keys of all threads reach, and few others. greatest: points
    to a zero in shared memory, which is zero again in the end."""
    name = f"tle_find_bound<{bins}, {keys.shape[0]}>"
    return T.call_extern("void", name, pointer(s), pointer(keys), rank, *map(pointer, (hist, totals, found)), greatest)
