//! Which of several entries makes room when there are too many: one of the holder that has most. So a holder with many
//! entries, such as a client that floods, loses its own and not those of others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

/// Returns the entry that was used least recently among those of the holder with most entries, and how many these are.
/// Each entry is given with its holder and its last use.
pub fn least_recent_of_largest<E, H: Eq + Hash, U: Ord>(
    entries: impl Iterator<Item = (E, H, U)>,
) -> Option<(E, usize)> {
    let mut holders: HashMap<H, (usize, U, E)> = HashMap::new();
    for (entry, holder, last_used) in entries {
        match holders.entry(holder) {
            Entry::Vacant(first) => drop(first.insert((1, last_used, entry))),
            Entry::Occupied(mut known) => {
                let (count, oldest_use, oldest) = known.get_mut();
                *count += 1;
                if last_used < *oldest_use {
                    (*oldest_use, *oldest) = (last_used, entry);
                }
            }
        }
    }
    let larger = |one: &(usize, U, E), other: &(usize, U, E)| one.0.cmp(&other.0).then(other.1.cmp(&one.1));
    holders.into_values().max_by(larger).map(|(count, _, oldest)| (oldest, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_with_most_loses_its_oldest() {
        let find = |entries: &[(u32, &str, u32)]| least_recent_of_largest(entries.iter().copied());
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[(1, "a", 5), (2, "b", 9), (3, "b", 7), (4, "b", 8)]), Some((3, 3)));
        assert_eq!(find(&[(1, "a", 5), (2, "b", 4)]), Some((2, 1)), "of two with as many, the older entry");
    }
}
