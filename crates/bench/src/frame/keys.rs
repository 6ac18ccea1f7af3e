//! Which keys a load asks for. Keys are numbered; their text is each load's own.

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Choice {
    /// By Zipf's law with this exponent; 0 is evenly.
    Skewed(f64),
    /// One after the other.
    InTurn,
}

/// Draws key numbers below `count`.
pub(crate) struct Keys {
    random: Random,
    count: u64,
    draw: Draw,
}

enum Draw {
    Evenly,
    Zipf(Zipf),
    InTurn(u64),
}

impl Keys {
    /// Keys below `count`; the same `seed` draws the same keys.
    pub(crate) fn new(count: u64, choice: Choice, seed: u64) -> Self {
        let draw = match choice {
            Choice::InTurn => Draw::InTurn(0),
            Choice::Skewed(skew) if skew > 0.0 => Draw::Zipf(Zipf::new(count as f64, skew)),
            Choice::Skewed(_) => Draw::Evenly,
        };
        // Neighbouring seeds begin far apart, and none at the one state that never moves.
        let state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { random: Random(state), count, draw }
    }

    /// The next key number.
    pub(crate) fn draw(&mut self) -> u64 {
        match &mut self.draw {
            Draw::Evenly => {
                let scaled = u128::from(self.random.next()) * u128::from(self.count);
                (scaled >> 64) as u64
            }
            // Neighbours in rank should not be neighbours in text.
            Draw::Zipf(zipf) => {
                (zipf.draw(&mut self.random) - 1).wrapping_mul(0x9e37_79b1) % self.count
            }
            Draw::InTurn(next) => {
                *next += 1;
                (*next - 1) % self.count
            }
        }
    }
}

/// Xorshift with a final multiplication: quick, and even enough to choose keys.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Evenly between 0 and 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Ranks from 1 to `count`, rank k with a weight of `k^-skew`, by rejection-inversion: draw from
/// the area under the continuous curve, keep the draw where it lies under the steps.
struct Zipf {
    count: f64,
    skew: f64,
    area_first: f64,
    area_all: f64,
}

impl Zipf {
    fn new(count: f64, skew: f64) -> Self {
        let mut zipf = Self { count, skew, area_first: 0.0, area_all: 0.0 };
        zipf.area_first = zipf.area(1.5) - 1.0;
        zipf.area_all = zipf.area(count + 0.5);
        zipf
    }

    fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let at = self.area_all + random.unit() * (self.area_first - self.area_all);
            let x = self.area_inverse(at);
            let rank = (x + 0.5).floor().clamp(1.0, self.count);
            if at >= self.area(rank + 0.5) - self.weight(rank) {
                return rank as u64;
            }
        }
    }

    fn weight(&self, rank: f64) -> f64 {
        (-self.skew * rank.ln()).exp()
    }

    /// The integral of the weight, up to a constant.
    fn area(&self, x: f64) -> f64 {
        let power = 1.0 - self.skew;
        if power.abs() < 1e-9 { x.ln() } else { x.powf(power) / power }
    }

    fn area_inverse(&self, area: f64) -> f64 {
        let power = 1.0 - self.skew;
        if power.abs() < 1e-9 { area.exp() } else { (area * power).powf(1.0 / power) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(count: u64, skew: f64) -> Vec<f64> {
        const DRAWS: usize = 200_000;
        let zipf = Zipf::new(count as f64, skew);
        let mut random = Random(42);
        let mut seen = vec![0_usize; count as usize];
        for _ in 0..DRAWS {
            seen[zipf.draw(&mut random) as usize - 1] += 1;
        }
        seen.into_iter().map(|n| n as f64 / DRAWS as f64).collect()
    }

    #[test]
    fn ranks_come_as_often_as_zipf_says() {
        for skew in [0.5, 1.0, 1.5] {
            let total: f64 = (1..=100).map(|k| f64::from(k).powf(-skew)).sum();
            for (at, share) in shares(100, skew).into_iter().enumerate() {
                let expected = (at as f64 + 1.0).powf(-skew) / total;
                assert!((share - expected).abs() < 0.005, "{skew} {at}: {share} {expected}");
            }
        }
    }

    #[test]
    fn even_draws_stay_below_the_count_and_reach_every_key() {
        let mut keys = Keys::new(10, Choice::Skewed(0.0), 7);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[keys.draw() as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
    }
}
