//! How an open pool hears of what a text has changed: by tasks of whoever serves it.

use blockwork_engine::TaskContext;
use blockwork_layer::thin::{Pool, VerbError};

use super::super::check_transaction;
use super::super::edit::Untold;
use super::GrownPool;
use crate::thin::PoolChange;

/// Why a pool was not told.
#[derive(Debug, thiserror::Error)]
pub enum TellError {
    /// Its transaction is not that before the text's.
    #[error("{0}")]
    Transaction(String),
    /// It refuses.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

/// Tells an open pool of changes, and counts its transaction up. What it knows already of a change that was cut short is not made again.
///
/// # Errors
///
/// It refuses one: those before it are made.
pub async fn tell(pool: &Pool, untold: &Untold, cx: &TaskContext) -> Result<(), TellError> {
    let found = pool.status().transaction_id;
    check_transaction(found, untold.transaction_id, true).map_err(TellError::Transaction)?;
    if found == untold.transaction_id {
        return Ok(());
    }
    for change in &untold.changes {
        match message(pool, *change, cx).await {
            Err(VerbError::Edit(error)) if change.is_made(&error) => {}
            told => told?,
        }
    }
    Ok(pool.set_transaction_id(cx, found, untold.transaction_id).await?)
}

/// Takes back what an open pool was told of new devices, where it was not told to the end: one that stayed, and that the text does not
/// know, would be taken for whatever gets its number next. False: the pool has counted the change, so that it is made.
///
/// # Errors
///
/// Its metadata cannot be read, or it does not let a device go.
pub async fn untell(pool: &Pool, untold: &Untold, cx: &TaskContext) -> Result<bool, VerbError> {
    if pool.status().transaction_id == untold.transaction_id {
        return Ok(false);
    }
    let there = pool.devices_of(cx).await?;
    for change in &untold.changes {
        let (PoolChange::Create { device } | PoolChange::Snapshot { device, .. }) = *change else { continue };
        if there.iter().any(|(id, _)| *id == device) {
            message(pool, PoolChange::Delete { device }, cx).await?;
        }
    }
    Ok(true)
}

/// Makes a change of an open pool.
///
/// # Errors
///
/// It refuses it.
pub async fn message(pool: &Pool, change: PoolChange, cx: &TaskContext) -> Result<(), VerbError> {
    match change {
        PoolChange::Create { device } => pool.create_thin(cx, device).await,
        PoolChange::Snapshot { device, origin } => pool.create_snap(cx, device, origin).await,
        PoolChange::Delete { device } => pool.delete(cx, device).await,
        PoolChange::TransactionId { current, new } => pool.set_transaction_id(cx, current, new).await,
        // An open pool counts its devices whenever one takes the place of another.
        PoolChange::Grow => Ok(()),
        PoolChange::ReserveMetadataSnap => pool.reserve_metadata_snap(cx).await,
        PoolChange::ReleaseMetadataSnap => pool.release_metadata_snap(cx).await,
    }
}

/// Lets a pool have what has taken the place of its devices.
///
/// # Errors
///
/// It cannot count them.
pub async fn grow(grown: GrownPool, cx: &TaskContext) -> Result<(), VerbError> {
    // The map first: it has to have room for what is counted of the data.
    if let Some(metadata) = grown.metadata {
        grown.pool.grow_metadata(cx, metadata).await?;
    }
    match grown.data {
        Some(data) => grown.pool.grow_data(cx, data).await,
        None => Ok(()),
    }
}
