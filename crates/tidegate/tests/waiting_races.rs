//! The wait queues under every order of events that can be tried: its own files, with locks and
//! atomics that a scheduler controls.
//!
//! What is waited for is a count of places behind a lock of its own, as the limiter's are. A
//! wake-up that is lost leaves a task asleep for ever, and the scheduler reports the deadlock.

#[path = "../src/waiting/queues.rs"]
#[allow(dead_code, unreachable_pub, reason = "the program uses the rest")]
mod queues;
#[path = "../src/waiting/wait_queues.rs"]
#[allow(dead_code, unreachable_pub, reason = "the program uses the rest")]
mod wait_queues;

/// The same names as in the program, on the scheduler's types.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().expect("nobody panics with the lock")
        }
    }
}

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use shuttle::future::{block_on, spawn};
use shuttle::thread;

use self::queues::QueueTicket;
use self::sync::Mutex;
use self::wait_queues::{Stepped, Try, WaitQueues};

/// How many schedules of each scene are tried.
const SCHEDULES: usize = 2_000;
/// How many places in a schedule are chosen to do something unlikely.
const DEPTH: usize = 4;

/// As the limiter has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count<'a> {
    pub(crate) rule: u32,
    pub(crate) name: &'a [u8],
    pub(crate) hash: u64,
}

fn count(key: &[u8]) -> Count<'_> {
    Count { rule: 1, name: key, hash: 7 }
}

/// A number of places, and those who wait for one.
struct Pool {
    queues: WaitQueues,
    free: Mutex<u32>,
    /// Who has taken a place, in order.
    order: Mutex<Vec<u32>>,
    /// What the rules call the count.
    rule: sync::AtomicU32,
}

const KEY: &[u8] = b"k";

impl Pool {
    fn new(free: u32) -> Arc<Self> {
        Arc::new(Self {
            queues: WaitQueues::new(),
            free: Mutex::new(free),
            order: Mutex::new(Vec::new()),
            rule: sync::AtomicU32::new(1),
        })
    }

    fn count<'k>(&self, key: &'k [u8]) -> Count<'k> {
        let rule = self.rule.load(sync::Ordering::SeqCst);
        Count { rule, hash: u64::from(rule), ..count(key) }
    }

    fn take(&self) -> bool {
        let mut free = self.free.lock();
        let taken = *free > 0;
        *free -= u32::from(taken);
        taken
    }

    /// As a newcomer tries who has not waited.
    fn try_once(&self) -> bool {
        self.queues.is_free(&self.count(KEY)) && self.take()
    }

    fn give_back(&self) {
        *self.free.lock() += 1;
        self.queues.wake_first(&self.count(KEY), || 0);
    }

    fn waiter(self: &Arc<Self>, name: u32) -> Waiter {
        Waiter { pool: self.clone(), name, ticket: None }
    }

    /// Everything is as it was before anybody came.
    fn is_as_new(&self, free: u32) {
        assert_eq!((self.queues.len(), *self.free.lock()), (0, free));
        assert!(self.queues.is_free(&self.count(KEY)));
    }
}

/// One who waits, as the program's own: in line first, then at the head a try; out when dropped.
struct Waiter {
    pool: Arc<Pool>,
    name: u32,
    ticket: Option<QueueTicket>,
}

impl Future for Waiter {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let pool = self.pool.clone();
        let join =
            || pool.queues.join(KEY, count_of_key(&pool), usize::MAX, u64::MAX, cx.waker(), 0);
        let ticket = *self.ticket.get_or_insert_with(|| join().expect("there is room"));
        let name = self.name;
        let attempt = |_, _| match pool.take() {
            true => {
                pool.order.lock().push(name);
                Try::Out(())
            }
            false => Try::Later(u64::MAX),
        };
        match pool.queues.step(ticket, cx.waker(), 0, attempt) {
            Stepped::Waiting => Poll::Pending,
            Stepped::Out(()) | Stepped::Booked((), _) => {
                self.ticket = None;
                Poll::Ready(())
            }
        }
    }
}

fn count_of_key(pool: &Arc<Pool>) -> impl for<'k> Fn(&'k [u8]) -> Count<'k> {
    let pool = pool.clone();
    move |key| pool.count(key)
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.pool.queues.leave(ticket, 0);
        }
    }
}

fn check(scene: impl Fn() + Send + Sync + 'static) {
    let scene = Arc::new(scene);
    let again = scene.clone();
    shuttle::check_random(move || scene(), SCHEDULES);
    shuttle::check_pct(move || again(), SCHEDULES, DEPTH);
}

#[test]
fn whoever_waits_is_woken_by_whoever_gives_back() {
    check(|| {
        let pool = Pool::new(1);
        let waiters: Vec<_> = (0..3)
            .map(|name| {
                let pool = pool.clone();
                thread::spawn(move || {
                    if !pool.try_once() {
                        block_on(pool.waiter(name));
                    }
                    pool.give_back();
                })
            })
            .collect();
        waiters.into_iter().for_each(|waiter| waiter.join().expect("served"));
        pool.is_as_new(1);
    });
}

#[test]
fn who_leaves_leaves_nothing_behind_and_wakes_the_next() {
    check(|| {
        let pool = Pool::new(0);
        let stays = thread::spawn({
            let pool = pool.clone();
            move || block_on(pool.waiter(1))
        });
        let leaves = thread::spawn({
            let pool = pool.clone();
            move || {
                block_on(async {
                    let mut waiter = pool.waiter(2);
                    let polled = std::future::poll_fn(|cx| {
                        Poll::Ready(Pin::new(&mut waiter).poll(cx).is_ready())
                    });
                    let served = polled.await;
                    drop(waiter);
                    if served {
                        pool.give_back();
                    }
                });
            }
        });
        pool.give_back();
        leaves.join().expect("left");
        stays.join().expect("served");
        pool.is_as_new(0);
    });
}

#[test]
fn those_in_line_go_in_order() {
    check(|| {
        let pool = Pool::new(0);
        block_on(async {
            let mut first = pool.waiter(0);
            let mut second = pool.waiter(1);
            // Both are in line before anybody gives back.
            std::future::poll_fn(|cx| {
                assert!(Pin::new(&mut first).poll(cx).is_pending());
                assert!(Pin::new(&mut second).poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            let giving = [0, 1, 2].map(|_| {
                let pool = pool.clone();
                thread::spawn(move || pool.give_back())
            });
            let third = spawn(pool.waiter(2));
            let second = spawn(second);
            first.await;
            second.await.expect("served");
            third.await.expect("served");
            giving.into_iter().for_each(|giver| giver.join().expect("gave back"));
        });
        assert_eq!(*pool.order.lock(), [0, 1, 2]);
        pool.is_as_new(0);
    });
}

#[test]
fn new_rules_lose_nobody() {
    check(|| {
        let pool = Pool::new(0);
        let waiters = [0, 1].map(|name| {
            let pool = pool.clone();
            thread::spawn(move || block_on(pool.waiter(name)))
        });
        let renewing = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.rule.store(2, sync::Ordering::SeqCst);
                pool.queues.rebuild(count_of_key(&pool), 0);
            }
        });
        pool.give_back();
        pool.give_back();
        renewing.join().expect("renewed");
        waiters.into_iter().for_each(|waiter| waiter.join().expect("served"));
        pool.is_as_new(0);
    });
}

/// A clock, and the one timer that the driver of the wait queues sleeps by, as the kernel's is: to
/// the moment.
struct Time {
    now: sync::AtomicU64,
    sleeper: Mutex<Option<(u64, Waker)>>,
}

impl Time {
    fn now(&self) -> u64 {
        self.now.load(sync::Ordering::SeqCst)
    }

    /// Wakes the driver at this time, if it is not yet.
    fn wake_at(&self, at: u64, driver: &Waker) {
        let mut sleeper = self.sleeper.lock();
        match self.now() >= at {
            true => driver.wake_by_ref(),
            false => *sleeper = Some((at, driver.clone())),
        }
    }

    fn turn_to(&self, now: u64) {
        let mut sleeper = self.sleeper.lock();
        self.now.store(now, sync::Ordering::SeqCst);
        let due = sleeper.take_if(|(at, _)| *at <= now);
        drop(sleeper);
        due.into_iter().for_each(|(_, driver)| driver.wake());
    }

    /// Wakes those whose time has come until the end of time, as the program's own driver does.
    fn drive(&self, queues: &WaitQueues, cx: &Context<'_>) -> Poll<()> {
        let now = self.now();
        let next = queues.wake_due(now, cx.waker());
        self.wake_at(next.unwrap_or(u64::MAX), cx.waker());
        if now == u64::MAX { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Waits until a time at which it may go, or one at which it gives up, in line or before it. Only
/// the driver can tell it.
struct Until {
    queues: Arc<WaitQueues>,
    time: Arc<Time>,
    goes_at: u64,
    gives_up_at: u64,
    ticket: Option<QueueTicket>,
}

impl Future for Until {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (queues, time, goes_at) = (self.queues.clone(), self.time.clone(), self.goes_at);
        let join = || queues.join(KEY, count, usize::MAX, self.gives_up_at, cx.waker(), time.now());
        let ticket = self.ticket.unwrap_or_else(|| join().expect("there is room"));
        self.ticket = Some(ticket);
        let attempt = |_, _| match time.now() >= goes_at {
            true => Try::Out(()),
            false => Try::Later(goes_at),
        };
        let now = time.now();
        match queues.step(ticket, cx.waker(), now, attempt) {
            Stepped::Waiting if now < self.gives_up_at => Poll::Pending,
            Stepped::Waiting => {
                queues.leave(ticket, now);
                Poll::Ready(())
            }
            Stepped::Out(()) | Stepped::Booked((), _) => Poll::Ready(()),
        }
    }
}

#[test]
fn whoever_waits_for_a_time_is_woken_by_a_driver_that_meant_to_sleep_for_longer() {
    check(|| {
        let queues = Arc::new(WaitQueues::new());
        let time = Arc::new(Time { now: sync::AtomicU64::new(0), sleeper: Mutex::new(None) });
        let driver = thread::spawn({
            let (queues, time) = (queues.clone(), time.clone());
            move || block_on(std::future::poll_fn(|cx| time.drive(&queues, cx)))
        });
        let waiter = |goes_at, gives_up_at| {
            let (queues, time) = (queues.clone(), time.clone());
            let until = Until { queues, time, goes_at, gives_up_at, ticket: None };
            thread::spawn(move || block_on(until))
        };
        let (gives_up, goes) = (waiter(u64::MAX, 10), waiter(20, u64::MAX));
        // At each time only one has to be told, by a driver that may sleep for the next.
        for (now, waiter) in [(10, gives_up), (20, goes)] {
            time.turn_to(now);
            waiter.join().expect("told");
        }
        assert_eq!(queues.len(), 0);
        time.turn_to(u64::MAX);
        driver.join().expect("ended");
    });
}
