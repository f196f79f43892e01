//! Sharing of a block's memory among the results of a pattern by dominance: a result takes over the place of an earlier one that
//! nothing reads any more once it is being made.
//!
//! An operator *post-dominates* another one if every path from that one to an end of the graph goes through it. Then all that reads the
//! earlier result has run before it, or is it itself. Only in the second case may it not write over what it still reads: it must read each
//! element at the place that it writes, before it writes it. In the first case a barrier of the block must come between.
//!
//! The paper asks for dominance; in a graph whose edges run from producers to consumers it is the dominance of the reversed graph that
//! says a result is dead. It names neither the barrier nor the test for writing in place.
//!
//! *Source*: "FusionStitching" (Long, Yang, Lin), Algorithm 4; post-dominators as in Cooper, Harvey and Kennedy, "A Simple, Fast Dominance
//! Algorithm" (2001). The sharing by lifetimes in one order of operators, in kernels' tiles, never needs more; this needs no order.

/// An operator of a pattern, listed in an order in which they can run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnChipResult {
    /// Positions of the operators whose results it reads.
    pub operands: Vec<usize>,
    /// Bytes of its result that a block must hold; 0 if it hands its result on otherwise.
    pub bytes: u64,
    /// Whether it reads each element of its operands at the place of its own that it then writes, and nothing else of them.
    pub is_in_place: bool,
}

/// Where the results of a pattern lie in a block's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnChipSharing {
    /// By operator: the number of its place, if it has one.
    pub places: Vec<Option<usize>>,
    /// Bytes of each place.
    pub sizes: Vec<u64>,
    /// Operators before which the block must wait, because they write over what others have read.
    pub barriers: Vec<usize>,
    /// Bytes of all results, and of all places.
    pub requested: u64,
    pub allocated: u64,
}

/// By operator: the one that post-dominates it most closely; `None` for those whose only such one is the end.
fn post_dominators(steps: &[OnChipResult]) -> Vec<Option<usize>> {
    let mut readers: Vec<Vec<usize>> = vec![vec![]; steps.len()];
    for (n, step) in steps.iter().enumerate() {
        step.operands.iter().for_each(|operand| readers[*operand].push(n));
    }
    let mut closest: Vec<Option<usize>> = vec![None; steps.len()];
    // Readers come later, so that one pass from the end suffices: a graph without cycles needs no second one.
    for n in (0..steps.len()).rev() {
        let meet = |a: Option<usize>, b: Option<usize>| {
            let (mut a, mut b) = (a, b);
            while a != b {
                // The earlier of both goes on; the end is later than all.
                match (a, b) {
                    (Some(x), Some(y)) if x < y => a = closest[x],
                    (Some(x), None) => a = closest[x],
                    (_, Some(y)) => b = closest[y],
                    (None, None) => {}
                }
            }
            a
        };
        let mut own = readers[n].iter().map(|reader| Some(*reader));
        let first = own.next().flatten();
        closest[n] = own.fold(first, meet);
    }
    closest
}

/// Shares the places of results by dominance.
pub fn share(steps: &[OnChipResult]) -> OnChipSharing {
    let closest = post_dominators(steps);
    let dominates = |later: usize, earlier: usize| {
        let mut at = closest[earlier];
        while let Some(n) = at.filter(|n| *n < later) {
            at = closest[n];
        }
        at == Some(later)
    };
    let mut found = OnChipSharing { places: vec![None; steps.len()], sizes: vec![], barriers: vec![], requested: 0, allocated: 0 };
    // By operator: the operators whose places its result depends on, and by place the last operator that holds it.
    let mut reach: Vec<Vec<usize>> = vec![vec![]; steps.len()];
    let mut holder: Vec<usize> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        let mut before: Vec<usize> = step.operands.iter().flat_map(|operand| reach[*operand].iter().copied()).collect();
        before.sort_unstable();
        before.dedup();
        if step.bytes == 0 {
            reach[n] = before;
            continue;
        }
        found.requested += step.bytes;
        let mut own = None;
        let mut released = Vec::new();
        for earlier in before.iter().copied().filter(|earlier| dominates(n, *earlier)) {
            let Some(place) = found.places[earlier].filter(|place| holder[*place] == earlier) else { continue };
            // What lies between hands the result on without a place of its own: then this one reads it.
            let reads = reads(steps, n, earlier);
            let legal = reads.is_none_or(|in_place| in_place && steps[earlier].bytes == step.bytes);
            if own.is_none() && found.sizes[place] >= step.bytes && legal {
                own = Some(place);
                if reads.is_none() {
                    found.barriers.push(n);
                }
            } else {
                released.push(place);
            }
        }
        let room = free.iter().position(|place| found.sizes[*place] >= step.bytes);
        let place = match (own, room) {
            (Some(own), _) => own,
            (None, Some(at)) => {
                found.barriers.push(n);
                free.remove(at)
            }
            (None, None) => {
                found.sizes.push(step.bytes);
                holder.push(n);
                found.sizes.len() - 1
            }
        };
        holder[place] = n;
        found.places[n] = Some(place);
        // Given back for those that come after it: it still reads what it releases.
        released.iter().for_each(|place| holder[*place] = steps.len());
        free.extend(released);
        reach[n] = before.into_iter().filter(|earlier| found.places[*earlier].is_some_and(|p| holder[p] == *earlier)).chain([n]).collect();
    }
    found.barriers.dedup();
    found.allocated = found.sizes.iter().sum();
    found
}

/// Whether an operator reads the result of an earlier one in place, by itself or through operators without places; `None` if it does not
/// read it so.
fn reads(steps: &[OnChipResult], n: usize, earlier: usize) -> Option<bool> {
    let of = |operand: &usize| match *operand == earlier {
        true => Some(steps[n].is_in_place),
        false if steps[*operand].bytes == 0 => reads(steps, *operand, earlier).map(|in_place| in_place && steps[n].is_in_place),
        false => None,
    };
    steps[n].operands.iter().filter_map(of).reduce(|a, b| a && b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(operands: &[usize], bytes: u64, is_in_place: bool) -> OnChipResult {
        OnChipResult { operands: operands.to_vec(), bytes, is_in_place }
    }

    /// Figure 1 of the paper with 94 rows and columns: the first product and the sum hold 94·94·4 bytes each, the two reductions 94·4
    /// each. 71,440 bytes are requested, "72 KB"; the sum takes the product's place, and 36,096 are left, "36 KB".
    #[test]
    fn the_example_of_the_paper_needs_36_096_bytes() {
        let (matrix, row) = (94 * 94 * 4, 94 * 4);
        let steps = [
            step(&[], matrix, false), // 0 dot_1
            step(&[0], 0, true),      // 1 multiply_1
            step(&[1], 0, true),      // 2 maximum
            step(&[2], matrix, true), // 3 add
            step(&[3], row, false),   // 4 reduce_1, the maximum of a row
            step(&[3, 4], 0, false),  // 5 exp(add - reduce_1)
            step(&[5], row, false),   // 6 reduce_2, the sum of a row
            step(&[6], 0, true),      // 7 log_1
            step(&[5], 0, false),     // 8 dot_2, which makes exp again
            step(&[8, 6], 0, false),  // 9 divide
            step(&[4, 6], 0, true),   // 10 multiply_2
            step(&[4, 7], 0, true),   // 11 subtract
        ];
        let found = share(&steps);
        assert_eq!((found.requested, found.allocated), (71_440, 36_096));
        assert_eq!((found.places[0], found.places[3]), (found.places[3], Some(0)), "in place, so that no barrier is needed");
        assert_eq!(found.barriers, [0usize; 0]);
    }

    #[test]
    fn a_result_that_is_read_elsewhere_too_keeps_its_place() {
        // 2 reads 0 but does not post-dominate it: 3 reads it as well.
        let found = share(&[step(&[], 64, false), step(&[0], 64, true), step(&[1], 64, true), step(&[0, 2], 0, true)]);
        assert_eq!(found.places[..3], [Some(0), Some(1), Some(1)]);
        assert_eq!((found.requested, found.allocated), (192, 128));
    }

    #[test]
    fn what_reads_other_places_than_it_writes_takes_no_operand_over_and_leaves_it_to_later_ones() {
        // A transposition cannot write over its operand; what comes after it can, behind a barrier.
        let found = share(&[step(&[], 64, false), step(&[0], 64, false), step(&[1], 64, false), step(&[2], 0, true)]);
        assert_eq!(found.places[..3], [Some(0), Some(1), Some(0)]);
        assert_eq!((found.barriers.as_slice(), found.allocated), (&[2usize][..], 128));
    }

    /// A smaller result finds room in a larger place, a larger one none in a smaller.
    #[test]
    fn places_fit() {
        let chain = |sizes: [u64; 3]| {
            share(&[step(&[], sizes[0], false), step(&[0], sizes[1], false), step(&[1], sizes[2], false), step(&[2], 0, true)]).allocated
        };
        assert_eq!([chain([64, 8, 32]), chain([8, 8, 64])], [72, 80]);
    }
}
