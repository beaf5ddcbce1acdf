//! The connection as a worker's port: receives, sends, timers, and its end.

use blockwork_engine::{Completion, Context, Done, Nanos, Port, PortState};
use blockwork_memory::bytes_in;
use blockwork_uring::Uring;
use rustix::net::{Shutdown, shutdown};

use super::requests::Filling;
use super::{Connection, DIRECT_MIN, Ended, Phase, Receiving, local};

impl Port<Uring> for Connection {
    fn open(&mut self, cx: &mut Context<'_, Uring>) {
        self.outbox.bytes(cx.pool(), &self.scratch);
        let timer = cx.token(local::HANDSHAKE_TIMER);
        cx.env.timeout(timer, self.config.handshake_time);
    }

    fn event(&mut self, cx: &mut Context<'_, Uring>, number: u32, completion: Completion) {
        match number {
            local::RECV => self.received(cx, completion),
            local::SEND => self.sent(completion),
            // Timers that were cancelled complete as well.
            local::HANDSHAKE_TIMER => {
                if matches!(self.phase, Phase::Handshake(_)) && self.ended.is_none() {
                    self.end(Ended::TooSlow);
                    self.dead = true;
                }
            }
            local::LINGER_TIMER => self.dead = true,
            local::AGAIN => self.paused = false,
            other => unreachable!("no operation {other} was ever started"),
        }
    }

    #[inline]
    fn done(&mut self, cx: &mut Context<'_, Uring>, done: Done) {
        self.answer(cx, done);
    }

    fn turn(&mut self, cx: &mut Context<'_, Uring>) -> PortState {
        if self.stalled {
            self.take_input(cx);
        }
        if self.draining && self.ended.is_none() && self.requests.len() == 0 && self.filling.is_none() {
            self.end(Ended::Shutdown);
        }
        if self.ended.is_some() {
            self.linger(cx);
        }
        if !self.dead && self.under_way.is_none() {
            self.send(cx);
        }
        if self.dead {
            self.requests.forget_waiting();
        }
        self.begin_waiting(cx);
        (self.looked, self.steps) = (Nanos(0), 0);
        self.share.settle(self.held());
        self.share.reads(self.requests.reading() > 0);
        let finished = self.ended.is_some()
            && self.requests.len() == 0
            && self.under_way.is_none()
            && self.outbox.is_empty();
        if self.dead || finished {
            self.close(cx);
            return PortState::Closed;
        }
        if self.receiving == Receiving::Nothing && self.ended.is_none() && !self.stalled {
            self.receive(cx);
        }
        PortState::Open
    }

    fn drain(&mut self, cx: &mut Context<'_, Uring>) {
        self.draining = true;
        match &mut self.phase {
            Phase::Handshake(handshake) => handshake.shut_down(),
            Phase::Transmission(session) => session.shut_down(),
            Phase::Between => unreachable!("a phase follows the one before at once"),
        }
        self.linger(cx);
    }
}

impl Connection {
    #[inline]
    fn receive(&mut self, cx: &mut Context<'_, Uring>) {
        if self.receive_guessed(cx) {
            return;
        }
        let direct = self.filling.as_ref().filter(|filling| filling.missing() >= DIRECT_MIN);
        let (receiving, room) = match (&mut self.cipher, direct) {
            (Some(cipher), _) => (Receiving::Inbox, cipher.raw.room(cx.pool())),
            (None, Some(filling)) => (Receiving::Payload, Some(filling.place())),
            (None, None) => (Receiving::Inbox, self.inbox.room(cx.pool())),
        };
        let room = room.expect("an inbox that is full holds something to do, so nothing is received");
        let token = cx.token(local::RECV);
        cx.env.recv(token, self.fd.clone(), room);
        self.receiving = receiving;
    }

    /// Receives what is guessed that comes next, if anything; only where a request begins or its payload ends, and nothing is encrypted.
    #[inline]
    fn receive_guessed(&mut self, cx: &mut Context<'_, Uring>) -> bool {
        let Phase::Transmission(session) = &self.phase else { return false };
        if !self.guess.is_made() || self.cipher.is_some() || self.skip > 0 || self.inbox.len() > 0 {
            return false;
        }
        // The payload under way is as long as those that are guessed, so one piece.
        let rest = self.filling.as_ref().map(Filling::place);
        let token = cx.token(local::RECV);
        self.inbox.rest(cx.pool());
        let parts = self.guess.prepare(cx.pool(), session.wanted(), rest);
        cx.env.recv_parts(token, self.fd.clone(), parts);
        self.receiving = Receiving::Guessed;
        true
    }

    #[inline]
    fn received(&mut self, cx: &mut Context<'_, Uring>, completion: Completion) {
        let receiving = std::mem::replace(&mut self.receiving, Receiving::Nothing);
        let bytes = match completion.outcome() {
            Ok(bytes) if bytes > 0 => usize::try_from(bytes).expect("a length in memory"),
            Ok(_) => return self.end(Ended::Gone),
            Err(errno) => {
                log::debug!("nbd client {}: receive: {errno}", self.ticket.number());
                return self.end(Ended::Gone);
            }
        };
        match (receiving, &mut self.cipher, &mut self.filling) {
            (Receiving::Nothing, ..) => unreachable!("no receive was under way"),
            (Receiving::Guessed, ..) if self.ended.is_some() => return,
            (Receiving::Guessed, ..) => return self.take_guessed(cx, bytes),
            (Receiving::Payload, _, Some(filling)) => filling.filled(bytes),
            (Receiving::Payload, _, None) => return, // the session ended meanwhile
            (Receiving::Inbox, Some(cipher), _) => cipher.raw.received(bytes),
            (Receiving::Inbox, None, _) => self.inbox.received(bytes),
        }
        if self.ended.is_none() {
            self.take_input(cx);
        }
    }

    #[inline]
    fn send(&mut self, cx: &mut Context<'_, Uring>) {
        let token = cx.token(local::SEND);
        if self.cipher.is_some() && !self.clear_left {
            return self.send_encrypted(cx);
        }
        if let Some(batch) = self.outbox.next() {
            self.under_way = Some(bytes_in(batch));
            cx.env.send(token, self.fd.clone(), batch);
        }
    }

    fn send_encrypted(&mut self, cx: &mut Context<'_, Uring>) {
        let token = cx.token(local::SEND);
        let finished = self.ended.is_some() && self.requests.len() == 0 && self.outbox.is_empty();
        let Some(cipher) = &mut self.cipher else { unreachable!("only with a cipher") };
        if finished {
            cipher.close();
        }
        let batch = self.outbox.whole();
        if batch.is_empty() && !cipher.wants_send() {
            return;
        }
        let (data, whole) = cipher.encrypt(batch, cx.pool());
        self.under_way = (!data.is_empty()).then(|| bytes_in(data));
        if !data.is_empty() {
            cx.env.send(token, self.fd.clone(), data);
        }
        if whole {
            self.outbox.taken();
        }
    }

    #[inline]
    fn sent(&mut self, completion: Completion) {
        let whole = self.under_way.take().expect("a send was under way");
        self.cipher.iter_mut().for_each(|cipher| cipher.sent());
        match completion.outcome() {
            Ok(bytes) if usize::try_from(bytes) == Ok(whole) => {
                if self.cipher.is_none() || self.clear_left {
                    self.outbox.sent();
                    self.clear_left &= !self.outbox.is_empty();
                }
            }
            outcome => {
                log::debug!("nbd client {}: {outcome:?} of {whole} bytes sent", self.ticket.number());
                self.end(Ended::Gone);
                self.dead = true;
            }
        }
    }

    /// From now on the client has a limited time to read its answers.
    fn linger(&mut self, cx: &mut Context<'_, Uring>) {
        if !std::mem::replace(&mut self.lingering, true) {
            let timer = cx.token(local::LINGER_TIMER);
            cx.env.timeout(timer, self.config.linger_time);
        }
    }

    /// Lets go of the socket: whatever is still under way on it ends now. Bios go on by themselves.
    fn close(&mut self, cx: &mut Context<'_, Uring>) {
        // The socket itself closes with the last operation on it.
        let _ = shutdown(&*self.fd, Shutdown::Both);
        for number in [local::HANDSHAKE_TIMER, local::LINGER_TIMER, local::AGAIN] {
            let token = cx.token(number);
            cx.env.cancel(token);
        }
        self.outbox.clear();
    }
}
