//! Results of tasks that run on all cores.

use rayon::prelude::*;

/// The values in the order of the tasks, or the error of the first task that has one.
///
/// # Errors
/// That of the first task in their order. Rayon's own `collect` hands over the error of whichever task ends first, so that the message for
/// one recipe would differ from run to run.
pub fn in_order<T: Send, E: Send>(tasks: impl IndexedParallelIterator<Item = Result<T, E>>) -> Result<Vec<T>, E> {
    let mut done = Vec::new();
    tasks.collect_into_vec(&mut done);
    done.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_in_order_is_handed_over() {
        for _ in 0..20 {
            // The first task ends last.
            let slow = |n: &usize| match n {
                0 => {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    Err(0)
                }
                n => Err(*n),
            };
            let tasks: Vec<usize> = (0..16).collect();
            assert_eq!(in_order(tasks.par_iter().map(slow)), Err::<Vec<()>, usize>(0));
        }
        assert_eq!(in_order([1, 2, 3].par_iter().map(|n| Ok::<_, ()>(n * 2))), Ok(vec![2, 4, 6]));
    }
}
