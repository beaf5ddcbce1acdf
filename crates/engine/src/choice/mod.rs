//! Which of two ways requests go, where nobody can know from outside which is faster: both are tried on the client's own requests.
//!
//! | question | the usual way | instead | why nobody can know |
//! | --- | --- | --- | --- |
//! | [`linearize`](Linearize) | elements go as they are | copied to one piece of memory first | some drivers make a request of each element, others had that mended |
//! | [`fua`](Fua) | RWF_DSYNC | a flush behind the write, which others share | devices with and without FUA; how much else a flush has to write |
//! | [`fixed`](Fixed) | the kernel was told of a request's pages before (registered buffers) | it finds them | drivers and kernels: how dear pages are to find, how registered ones are cut |
//!
//! | file | what |
//! | --- | --- |
//! | `class.rs` | which requests are compared with each other only: by question, direction, length, elements |
//! | `rule.rs` | when which way is tried, when that is enough, and when it is done again |
//! | `evidence.rs` | what the trials have shown, and how sure that is |
//! | `watch.rs` | whether times have changed |
//! | `calm.rs` | whether requests have to be looked at one by one |
//! | `told.rs` | what came of it, for whoever asks |
//!
//! Invariants:
//! 1. No clock but the worker's, no chance: the same requests at the same times are decided the same.
//! 2. Both ways are right at any time: a choice is about speed only.
//! 3. Memory is bounded: [`CLASSES_MAX`] classes of less than two kilobytes each; what is beyond goes the usual way.
//! 4. Each worker finds out for itself: nothing is shared but what is reported.
//! 5. A request that nobody looks at, since all is calm, goes as those of its class that were looked at.

mod calm;
mod class;
mod evidence;
#[cfg(test)]
mod rows;
mod rule;
mod settings;
#[cfg(test)]
mod tests;
mod told;
mod watch;

use crate::units::Nanos;

use calm::{Calm, Said};
pub use class::{Boundaries, RequestClass, Subject};
pub(crate) use class::{fixed as fixed_class, fua as fua_class, linearize as linearize_class};
pub(crate) use rule::Way;
use rule::{Rule, Ticket};
pub use settings::{Fixed, Fua, Linearize};
pub use told::ChoiceSnapshot;
pub(crate) use told::{Choices, News, snapshot};

/// Classes of one leaf and worker that are tried; those that come later go the usual way.
const CLASSES_MAX: usize = 128;
/// A class is told of again after so many requests, at most.
const TELL_EVERY: u64 = 1024;
/// Requests of a class that has joined another, until it goes on by itself: what is not decided by then, is not soon.
const JOINED_MAX: u32 = 1024;
/// What stands for a class that has not been seen.
const UNSEEN: u8 = u8::MAX;

/// The device's time, as requests share it: while n of them are under way, each pays for an n-th of what goes by. So what requests
/// cost adds up to the time during which the device was busy, however many were under way at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    paid: f64,
    last: Nanos,
}

impl Busy {
    /// The time is `now`; until now `under_way` requests were under way. Returns what a request has paid that was under way always.
    #[inline]
    pub(crate) fn at(&mut self, now: Nanos, under_way: u32) -> f64 {
        if now > self.last {
            if under_way > 0 {
                self.paid += float(now.0 - self.last.0) / f64::from(under_way);
            }
            self.last = now;
        }
        self.paid
    }

    /// It is gone on with from `now` on.
    fn resume(&mut self, now: Nanos) {
        self.last = now;
    }
}

/// A time or a length; neither comes near 2^63. A processor converts a signed number by one instruction, and an unsigned one by several.
#[inline]
fn float(of: u64) -> f64 {
    of.cast_signed() as f64
}

/// The questions for which a queue may be calm: their number in `ways`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Linearize,
    Fixed,
}

/// A request that the comparison has an eye on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    class: u8,
    /// The class that it is a request of for the comparison: this one, or one that this one has joined.
    tried_by: u8,
    ticket: Ticket,
    /// Calms before it.
    calms: u32,
}

impl Watched {
    pub(crate) fn way(&self) -> Way {
        self.ticket.way
    }
    pub(crate) fn is_trial(&self) -> bool {
        self.ticket.is_trial
    }
}

struct Class {
    number: usize,
    /// For which it may be calm.
    question: Option<Question>,
    rule: Rule,
    requests: [u64; 2],
    settlements: u32,
    /// The class that it has joined, and how many requests it has had since.
    joined: Option<(u8, u32)>,
    /// It is told again when it has had so many requests.
    tell_at: u64,
}

/// The comparison, for one leaf and worker.
#[derive(Default)]
pub(crate) struct Chooser {
    /// Requests are looked at: there is something to choose for all of a kind, and no calm.
    looks: bool,
    /// [`Chooser::starts`] has to be called for the next request: it is looked at, or the device had nothing to do before it.
    attends: bool,
    /// The index of each class by its number, once one was seen.
    index: Vec<u8>,
    classes: Vec<Class>,
    /// The device's time, while requests are looked at.
    busy: Busy,
    calm: Calm,
}

impl Chooser {
    /// `chooses`: there is something to choose for all requests of a kind, not only for those that are to be durable.
    pub(crate) fn new(chooses: bool) -> Chooser {
        Chooser { looks: chooses, attends: chooses, ..Chooser::default() }
    }

    /// Whether [`Chooser::starts`] has to be called for the next request. In a calm that is seldom, so to ask is all that most requests cost.
    #[inline]
    pub(crate) fn attends(&self) -> bool {
        self.attends
    }

    /// Whether [`Chooser::ends`] has to be called for the next request that is done.
    #[inline]
    pub(crate) fn looks(&self) -> bool {
        self.looks
    }

    /// A request is about to be given to the device, which has `under_way`.
    #[inline]
    pub(crate) fn starts(&mut self, now: Nanos, under_way: u32) {
        if under_way == 0 {
            self.calm.idle_until(now);
        }
        if self.looks {
            self.busy.at(now, under_way);
        }
        self.attends = self.looks;
    }

    /// One of the `under_way` requests that the device has is done.
    #[inline(never)]
    pub(crate) fn ends(&mut self, now: Nanos, under_way: u32) {
        self.busy.at(now, under_way);
        self.calm.drains();
    }

    /// One is done, and was told of; it has `under_way` still. Whether [`Chooser::window_done`] has to be called.
    #[inline]
    pub(crate) fn ended(&mut self, now: Nanos, under_way: u32) -> bool {
        if under_way == 0 {
            self.calm.idle_from(now);
            self.attends = true;
        }
        self.calm.one_done(now)
    }

    /// `bytes`: what the device was given until now. Whether a calm has begun or ended.
    #[inline]
    pub(crate) fn window_done(&mut self, now: Nanos, under_way: u32, bytes: u64) -> bool {
        match self.calm.window_done(now, under_way, bytes) {
            Said::Nothing => false,
            Said::Ready(class) => self.calm_begins(usize::from(class), under_way),
            Said::Window { class, each } => {
                let class = usize::from(class);
                let is_alarm = each.is_some_and(|each| self.classes[class].rule.window_done(each));
                let ends = is_alarm || !self.calm.goes_on();
                if ends {
                    self.calm_ends(class, now, under_way);
                }
                ends
            }
        }
    }

    /// Unless classes lead differently.
    #[cold]
    fn calm_begins(&mut self, class: usize, under_way: u32) -> bool {
        let Some(ways) = lead(&self.classes) else {
            self.calm.is_none();
            return false;
        };
        let rule = &mut self.classes[class].rule;
        self.calm.begin(ways, (rule.calms(), rule.dear()), under_way);
        _ = self.calm.goes_on();
        (self.looks, self.attends) = (false, under_way == 0);
        true
    }

    #[cold]
    fn calm_ends(&mut self, class: usize, now: Nanos, under_way: u32) {
        let class = &mut self.classes[class];
        let [done, flying] = self.calm.end(under_way);
        class.requests[class.rule.leader() as usize] += u64::from(done) + u64::from(flying);
        class.rule.calm_ends(done);
        self.busy.resume(now);
        (self.looks, self.attends) = (true, true);
    }

    /// How requests go that a question is asked about, while nobody has to look at them.
    #[inline]
    pub(crate) fn calm_way(&self, question: Question) -> Option<Way> {
        self.calm.way(question as usize)
    }

    /// Nobody has to look at requests that it is asked about, and they go the usual way.
    #[inline]
    pub(crate) fn is_as_usual(&self, question: Question) -> bool {
        self.calm.is_as_usual(question as usize)
    }

    /// What a request has paid that was under way always.
    #[inline]
    pub(crate) fn paid(&self) -> f64 {
        self.busy.paid
    }

    /// A request of that class is about to be started, where `under_way` share the time. `None`: it goes the usual way.
    #[inline]
    pub(crate) fn start(&mut self, number: usize, under_way: u32, paid: f64) -> Option<Watched> {
        let class = self.class(number)?;
        let it = &mut self.classes[usize::from(class)];
        let is_known = it.question.is_none() || !self.calm.is_draining();
        let mut tried_by = class;
        if it.rule.is_alarmed() {
            tried_by = self.tried_by(class);
        }
        let ticket = self.classes[usize::from(tried_by)].rule.start(is_known, under_way, paid);
        self.classes[usize::from(class)].requests[ticket.way as usize] += 1;
        Some(Watched { class, tried_by, ticket, calms: self.calm.number() })
    }

    /// The class by whose trial the next request of one goes whose requests have become dearer: its own, or that of one which it joins.
    #[cold]
    fn tried_by(&mut self, class: u8) -> u8 {
        let number = usize::from(class);
        if self.classes[number].rule.was_just_alarmed() {
            self.join(number);
        }
        let Some((with, requests)) = self.classes[number].joined else { return class };
        let rule = &self.classes[usize::from(with)].rule;
        if rule.is_alarmed() && requests < JOINED_MAX {
            self.classes[number].joined = Some((with, requests + 1));
            return with;
        }
        let way = rule.leader();
        let it = &mut self.classes[number];
        it.joined = None;
        it.rule.parts(way);
        class
    }

    /// Joins it to one of its question that is tried for the same reason, if there is one and that has not joined another.
    fn join(&mut self, number: usize) {
        let it = &self.classes[number];
        if it.joined.is_some() || it.question.is_none() {
            return;
        }
        let with = self.classes.iter().enumerate().position(|(other, with)| {
            other != number
                && with.question == it.question
                && with.joined.is_none()
                && with.rule.may_be_joined_by(&it.rule)
        });
        if let Some(with) = with {
            let under_way = self.classes[number].rule.joins();
            self.classes[with].rule.is_joined(under_way);
            let with = u8::try_from(with).expect("fewer than 255 classes");
            self.classes[number].joined = Some((with, 0));
        }
    }

    /// The way that requests of that class go while nobody watches: what is decided, or leads.
    #[inline]
    pub(crate) fn leader(&self, number: usize) -> Way {
        match self.index.get(number) {
            Some(&class) if class != UNSEEN => self.classes[usize::from(class)].rule.leader(),
            _ => Way::Usual,
        }
    }

    #[inline]
    fn class(&mut self, number: usize) -> Option<u8> {
        match self.index.get(number) {
            Some(&class) if class != UNSEEN => Some(class),
            _ => self.new_class(number),
        }
    }

    #[cold]
    fn new_class(&mut self, number: usize) -> Option<u8> {
        if self.classes.len() == CLASSES_MAX {
            return None;
        }
        self.index.resize(class::NUMBERS, UNSEEN);
        let class = u8::try_from(self.classes.len()).expect("fewer than 255 classes");
        self.index[number] = class;
        self.classes.push(Class {
            number,
            question: class::question(number),
            rule: Rule::new(),
            requests: [0; 2],
            settlements: 0,
            joined: None,
            tell_at: 1,
        });
        Some(class)
    }

    /// It is done, at a time when `paid` was paid: whether well, else its time says nothing. Returns what is worth a report.
    #[inline]
    pub(crate) fn done(&mut self, watched: Watched, well: bool, paid: f64, bytes: u64) -> Option<News> {
        let tried_by = &mut self.classes[usize::from(watched.tried_by)];
        let was_calm = tried_by.question.is_some() && watched.calms != self.calm.number();
        tried_by.rule.done(watched.ticket, well && !was_calm, paid, bytes);
        let class = &mut self.classes[usize::from(watched.class)];
        if class.question.is_some() && self.looks {
            self.calm.looked(watched.class, class.rule.rest());
        }
        let settled = class.rule.settlements() != class.settlements;
        let requests = class.requests[0] + class.requests[1];
        if !settled && requests < class.tell_at {
            return None;
        }
        // Often while there are few, and seldom when there are many.
        while class.tell_at <= requests {
            class.tell_at += class.tell_at.min(TELL_EVERY);
        }
        class.settlements = class.rule.settlements();
        Some(News::new(class.number, settled, &class.rule, class.requests))
    }
}

/// How all classes go, by question; `None` if they differ.
fn lead(classes: &[Class]) -> Option<[Way; 2]> {
    let mut ways = [None; 2];
    for class in classes {
        let Some(question) = class.question else { continue };
        let (way, leader) = (&mut ways[question as usize], class.rule.leader());
        if *way.get_or_insert(leader) != leader {
            return None;
        }
    }
    Some(ways.map(|way| way.unwrap_or(Way::Usual)))
}
