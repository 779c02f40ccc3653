//! The composition root: binds, opens the store, starts the tasks, drains.
