//! Tests (below).
