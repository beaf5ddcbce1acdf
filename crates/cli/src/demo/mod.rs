//! (being written)
pub(crate) fn run(_args: &crate::args::DemoArgs) -> anyhow::Result<()> { Ok(()) }
