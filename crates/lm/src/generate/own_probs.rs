//! The log-probabilities that the model itself gives to the next token, whatever is sampled from them.

/// The distribution of the next token at temperature 1, before bias and penalties.
#[derive(Debug)]
pub(super) struct OwnProbs {
    /// The logarithm of the sum of the exponentials of all logits.
    log_sum: f64,
    /// The likeliest tokens with their logits, the likeliest first.
    top: Vec<(u32, f32)>,
}

impl OwnProbs {
    /// Of these logits, with the `n_top` likeliest tokens; of equals the first ones.
    pub(super) fn new(logits: &[f32], n_top: usize) -> OwnProbs {
        let mut top: Vec<(u32, f32)> = Vec::with_capacity(n_top.min(logits.len()) + 1);
        let mut max = f32::NEG_INFINITY;
        for (id, &logit) in logits.iter().enumerate() {
            max = max.max(logit);
            if top.len() < n_top || top.last().is_some_and(|(_, least)| logit > *least) {
                let at = top.partition_point(|(_, other)| *other >= logit);
                top.insert(at, (id as u32, logit));
                top.truncate(n_top);
            }
        }
        let max = f64::from(max);
        let sum: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit) - max)).sum();
        OwnProbs { log_sum: max + libm::log(sum), top }
    }

    /// The log-probability of a token with this logit.
    pub(super) fn of(&self, logit: f32) -> f32 {
        (f64::from(logit) - self.log_sum) as f32
    }

    /// The likeliest tokens with their log-probabilities.
    pub(super) fn top(&self) -> Vec<(u32, f32)> {
        self.top.iter().map(|&(id, logit)| (id, self.of(logit))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_logarithms_of_the_softmax() {
        let logits = [1.0f32, 3.0, -1.0, 2.0, 3.0];
        let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
        let probs = OwnProbs::new(&logits, 3);
        for logit in logits {
            assert!((f64::from(probs.of(logit)) - (f64::from(logit) - sum.ln())).abs() < 1e-6);
        }
        let top = probs.top();
        assert_eq!(top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 4, 3]);
        assert_eq!(top[2].1, probs.of(2.0));
        assert!(OwnProbs::new(&logits, 0).top().is_empty());
        assert_eq!(OwnProbs::new(&logits, 99).top().len(), 5);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let probs = OwnProbs::new(&[1e30, f32::NEG_INFINITY], 2);
        assert_eq!((probs.of(1e30), probs.of(f32::NEG_INFINITY)), (0.0, f32::NEG_INFINITY));
    }
}
