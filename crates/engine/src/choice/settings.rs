//! The settings by which somebody who knows better decides.

/// What to do with requests of several elements (`linearize`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linearize {
    /// Whatever turns out to be faster.
    Auto,
    /// They are copied to one piece of memory.
    On,
    /// They go as they are.
    #[default]
    Off,
}

impl Linearize {
    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Linearize::Auto => "auto",
            Linearize::On => "on",
            Linearize::Off => "off",
        }
    }
    /// The one of that name.
    pub fn parse(name: &str) -> Option<Linearize> {
        [Linearize::Auto, Linearize::On, Linearize::Off].into_iter().find(|one| one.name() == name)
    }
}

/// Whether requests go by memory that the kernel was told of before, io_uring's registered buffers (`fixed`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fixed {
    /// Whatever turns out to be faster.
    Auto,
    /// Where all of a request lies in such memory.
    On,
    /// Never.
    #[default]
    Off,
}

impl Fixed {
    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Fixed::Auto => "auto",
            Fixed::On => "on",
            Fixed::Off => "off",
        }
    }
    /// The one of that name.
    pub fn parse(name: &str) -> Option<Fixed> {
        [Fixed::Auto, Fixed::On, Fixed::Off].into_iter().find(|one| one.name() == name)
    }
}

/// How a write that is to be durable when it completes is made so (`fua`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fua {
    /// Whatever turns out to be faster.
    Auto,
    /// By the device, write by write (RWF_DSYNC).
    #[default]
    Dsync,
    /// By a flush behind it: the device cannot do it, or shall not.
    Flush,
}

impl Fua {
    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Fua::Auto => "auto",
            Fua::Dsync => "dsync",
            Fua::Flush => "flush",
        }
    }
    /// The one of that name.
    pub fn parse(name: &str) -> Option<Fua> {
        [Fua::Auto, Fua::Dsync, Fua::Flush].into_iter().find(|one| one.name() == name)
    }
    /// Of something that lies over two such: what holds for all of it.
    pub(crate) fn over(self, below: Fua) -> Fua {
        match (self, below) {
            (Fua::Flush, _) | (_, Fua::Flush) => Fua::Flush,
            (Fua::Auto, _) | (_, Fua::Auto) => Fua::Auto,
            (Fua::Dsync, Fua::Dsync) => Fua::Dsync,
        }
    }
}
