//! Max-min fairness over whole numbers.

/// Divides `budget` so that no want has less than another that is no larger, and spreads what no
/// want needs evenly. The sum is at most the budget.
pub(super) fn shares(wants: &[u64], budget: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|&place| wants[place]);
    let mut shares = vec![0; wants.len()];
    let mut left = budget;
    for (served, &place) in order.iter().enumerate() {
        shares[place] = wants[place].min(left / (wants.len() - served) as u64);
        left -= shares[place];
    }
    let rest = left.checked_div(wants.len() as u64).unwrap_or(0);
    shares.iter_mut().for_each(|share| *share += rest);
    shares
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn small_wants_are_met_and_the_rest_is_even() {
        let check = |wants: &[u64], budget, expected: &[u64]| {
            assert_eq!(shares(wants, budget), expected, "{wants:?} of {budget}");
        };
        check(&[], 10, &[]);
        check(&[0], 10, &[10]);
        check(&[100, 100], 10, &[5, 5]);
        check(&[2, 100, 100], 10, &[2, 4, 4]);
        check(&[0, 4], 10, &[3, 7]);
        check(&[u64::MAX, u64::MAX], u64::MAX, &[u64::MAX / 2, u64::MAX / 2 + 1]);
    }
}
