//! How much of a bucket each stream shall have, and the steps there: what is too much is lowered at
//! once, what is too little is raised by what is free.

use super::{DIVISION, Leases, Turn};
use crate::quota::StreamId;
use crate::quota::fair;

/// The rate and the burst that a stream shall have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) fill: u64,
    pub(super) burst: u64,
}

/// `old` if `new` is within so many percent of it.
fn damped(old: u64, new: u64, percent: u64) -> u64 {
    let change = u128::from(old.abs_diff(new)) * 100;
    if change < u128::from(old) * u128::from(percent) { old } else { new }
}

fn part(whole: u64, of: u64, in_all: u64) -> u64 {
    let part = u128::from(whole) * u128::from(of) / u128::from(in_all.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

impl Leases {
    /// The rates that streams may have in all. The last 5 % are for newcomers and other doors.
    fn fill_budget(&self) -> u64 {
        part(self.fill_whole(), 95, 100)
    }

    /// The bursts that streams may hold in all. The last quarter is for newcomers and other doors.
    fn burst_budget(&self) -> u64 {
        let whole = self.burst_whole();
        whole - whole / 4
    }

    /// Divides the bucket, and changes what differs by so many percent.
    pub(super) fn divide(&mut self, percent: u64, turn: &mut Turn<'_>) {
        self.divide_at = turn.mono().saturating_add(DIVISION);
        let targets = self.targets();
        for (stream, target) in &targets {
            self.lower(*stream, *target, percent, turn);
        }
        let lacking: u64 = targets.iter().map(|(stream, target)| self.lack(*stream, *target)).sum();
        let free = self.fill_budget().saturating_sub(self.fill_taken());
        for (stream, target) in &targets {
            let lack = self.lack(*stream, *target);
            // Where parts are less than a token, the first ones have one.
            let part = || part(free, lack, lacking).max(1).min(lack);
            let raise = if lacking <= free { lack } else { part() };
            self.raise(*stream, *target, raise, turn);
        }
    }

    /// What each stream shall have: rates are max-min fair, and bursts follow the rates. Where
    /// there are more streams than bursts or tokens, those that want most share all, and the others
    /// have nothing: a rate without a burst would be of no use.
    fn targets(&self) -> Vec<(StreamId, Target)> {
        let (budget, bursts) = (self.fill_budget(), self.burst_budget());
        let even = budget / (self.seats.len() as u64).max(1);
        let mut wants: Vec<(StreamId, u64, bool)> = (self.seats.iter())
            .map(|(stream, lease)| {
                let wanted = lease.demand.wanted_in(self.fill_s).unwrap_or(even);
                (*stream, wanted, lease.burst > 0)
            })
            .collect();
        // A stream that has a lease keeps it before those that want a little more: to move it takes
        // its time.
        let weight = |wanted: u64, has: bool| wanted.saturating_mul(if has { 5 } else { 4 });
        wants.sort_by_key(|(_, wanted, has)| std::cmp::Reverse(weight(*wanted, *has)));
        let served = wants.len().min(usize::try_from(bursts.min(budget)).unwrap_or(usize::MAX));
        let wanted: Vec<u64> = wants[..served].iter().map(|(_, wanted, _)| *wanted).collect();
        let fills = fair::shares(&wanted, budget).into_iter().chain(std::iter::repeat(0));
        let mut left = bursts;
        let target = |((stream, ..), fill): (&(StreamId, u64, bool), u64)| {
            let burst = part(bursts, fill, budget).max(1).min(left);
            left -= burst;
            (*stream, Target { fill, burst })
        };
        wants.iter().zip(fills).map(target).collect()
    }

    /// Gives a newcomer what is free, up to an even share. The next division lowers what others
    /// have beyond theirs.
    pub(super) fn welcome(&mut self, stream: StreamId, turn: &mut Turn<'_>) {
        let streams = (self.seats.len() as u64).max(1);
        let even = |whole: u64| (whole / streams).max(1).min(whole);
        let target = Target { fill: even(self.fill_budget()), burst: even(self.burst_budget()) };
        self.raise(stream, target, target.fill, turn);
    }

    fn lack(&self, stream: StreamId, target: Target) -> u64 {
        self.seats.get(&stream).map_or(0, |lease| target.fill.saturating_sub(lease.fill))
    }

    fn lower(&mut self, stream: StreamId, target: Target, percent: u64, turn: &mut Turn<'_>) {
        let Some(lease) = self.seats.get(&stream) else { return };
        let fill = damped(lease.fill, target.fill.min(lease.fill), percent);
        let burst = damped(lease.burst, target.burst.min(lease.burst), percent);
        if fill < lease.fill || burst < lease.burst {
            self.assign(stream, Target { fill, burst }, turn);
        }
    }

    fn raise(&mut self, stream: StreamId, target: Target, raise: u64, turn: &mut Turn<'_>) {
        let Some(lease) = self.seats.get(&stream) else { return };
        let free = self.fill_budget().saturating_sub(self.fill_taken());
        let mut fill = lease.fill + raise.min(free);
        let lack = target.burst.saturating_sub(lease.burst);
        let mut burst = lease.burst + lack.min(self.burst_budget().saturating_sub(self.held()));
        if lease.burst == 0 {
            // A newcomer may have half of what is kept back at once, and one use of it at least.
            let last = self.fill_whole().saturating_sub(self.fill_taken());
            fill = fill.max(last.div_ceil(2).min(target.fill));
            let last = self.burst_whole().saturating_sub(self.held());
            burst = burst.max(last.div_ceil(2).min(target.burst));
        }
        let newcomer = lease.sent.is_none();
        let fill = damped(lease.fill, fill, super::CHANGE_PERCENT);
        let burst = damped(lease.burst, burst, super::CHANGE_PERCENT);
        let raised = fill > lease.fill && burst > 0 || burst > lease.burst && fill > 0;
        if newcomer || raised {
            self.assign(stream, Target { fill, burst }, turn);
        }
    }
}
