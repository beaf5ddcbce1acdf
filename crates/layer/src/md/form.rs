//! The form of an array: what changes when it grows, all of it at once.
//!
//! A new one becomes current while no write is under way (behind a fence around everything); who resolves a bio may hold on to the one
//! before for as long as that takes.

use blockwork_engine::Shape;

use super::geometry::Geometry;
use super::intent::Intent;

/// What an array is like.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) shape: Shape,
    pub(super) geometry: Geometry,
    pub(super) intent: Option<Intent>,
}
