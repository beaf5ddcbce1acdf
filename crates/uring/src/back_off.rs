//! Whether to try what only pays at times, such as to look for something before sleeping: what was in vain is tried ever less often, until
//! it has paid again.

/// What became of the tries so far; at least one in `MAX` occasions is taken.
#[derive(Debug, Default)]
pub struct BackOff<const MAX: u32> {
    back_off: u32,
    to_skip: u32,
}

impl<const MAX: u32> BackOff<MAX> {
    /// Whether to try it this time. Whoever does tells what came of it.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        let skip = self.to_skip > 0;
        self.to_skip = self.to_skip.saturating_sub(1);
        !skip
    }

    /// It has paid.
    #[inline]
    pub fn paid(&mut self) {
        (self.back_off, self.to_skip) = (0, 0);
    }

    /// It was in vain.
    #[inline]
    pub fn in_vain(&mut self) {
        self.back_off = (self.back_off * 2).clamp(1, MAX);
        // One miss between hits is an accident.
        self.to_skip = self.back_off - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_tried_ever_less_often_until_it_pays() {
        let mut back_off = BackOff::<256>::default();
        let mut tries = |occasions: usize, pays: bool| {
            let mut tried = Vec::new();
            for occasion in 0..occasions {
                if back_off.is_due() {
                    if pays {
                        back_off.paid()
                    } else {
                        back_off.in_vain()
                    }
                    tried.push(occasion);
                }
            }
            tried
        };
        assert_eq!(tries(32, false), [0, 1, 3, 7, 15, 31]);
        let rarely = tries(25_600, false).len();
        assert!((100..110).contains(&rarely), "{rarely}");
        let again = tries(1000, true);
        assert!(again[0] < 256 && again.len() == 1000 - again[0], "from the first that paid on: {again:?}");
    }
}
