//! Layers: what an I/O becomes. Behaviour over `blockwork-engine`; which bytes on a disk describe a layer is the business
//! of `blockwork-format`, and which layers make up a volume that of `blockwork-volume`.
//!
//! Here: the device-mapper targets `linear`, `striped`, `delay`, `zero` and `error`, the table that puts targets side by
//! side, and the partition; md arrays ([`md`]); what of an origin lies on a cache ([`Overlay`]); a smaller limit on discards over any of them; what holds writes back while a stack is
//! changed ([`Suspension`]). Sources: the kernel's
//! `Documentation/admin-guide/device-mapper/{linear,striped,delay,zero}.rst`.
//!
//! Invariants, of every layer: (1) the pieces it hands on cover the span exactly, each sector once (for writes to
//! copies: once per copy); (2) resolving allocates nothing; (3) a flush reaches everything below, once.
#![forbid(unsafe_code)]

mod current;
mod delay;
mod discard_max;
mod divisor;
mod linear;
pub mod md;
mod overlay;
pub mod snapshot;
mod striped;
mod suspended;
mod table;
pub mod thin;
mod zero;

pub use delay::Delay;
pub use discard_max::DiscardMax;
pub use linear::Linear;
pub use overlay::{Overlay, OverlayConfig, OverlayError};
pub use striped::{Stripe, Striped, StripedError};
pub use suspended::Suspension;
pub use table::{Segment, Table, TableError};
pub use zero::{ErrorTarget, Zero};
