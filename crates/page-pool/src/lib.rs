//! Buffer recycling with the semantics of the kernel's page_pool.
