//! Request and response codes, as open sets: unknown codes pass through.

/// What a request asks for.
pub mod request {
    /// SEND_MESSAGE: long ext names.
    pub const SEND_MESSAGE: i32 = 10;
    /// VIEW_MESSAGE_BY_ID.
    pub const VIEW_MESSAGE_BY_ID: i32 = 33;
    /// GET_BROKER_RUNTIME_INFO: without side effects, used to keep connections alive.
    pub const GET_BROKER_RUNTIME_INFO: i32 = 28;
    /// END_TRANSACTION.
    pub const END_TRANSACTION: i32 = 37;
    /// PUT_KV_CONFIG: written to every name server.
    pub const PUT_KV_CONFIG: i32 = 100;
    /// DELETE_KV_CONFIG: written to every name server.
    pub const DELETE_KV_CONFIG: i32 = 102;
    /// REGISTER_BROKER: never through the proxy.
    pub const REGISTER_BROKER: i32 = 103;
    /// UNREGISTER_BROKER: never through the proxy.
    pub const UNREGISTER_BROKER: i32 = 104;
    /// GET_ROUTEINFO_BY_TOPIC.
    pub const GET_ROUTEINFO_BY_TOPIC: i32 = 105;
    /// GET_BROKER_CLUSTER_INFO.
    pub const GET_BROKER_CLUSTER_INFO: i32 = 106;
    /// WIPE_WRITE_PERM_OF_BROKER: written to every name server.
    pub const WIPE_WRITE_PERM_OF_BROKER: i32 = 205;
    /// DELETE_TOPIC_IN_NAMESRV: written to every name server.
    pub const DELETE_TOPIC_IN_NAMESRV: i32 = 216;
    /// GET_SYSTEM_TOPIC_LIST_FROM_NS: its answer carries one broker address.
    pub const GET_SYSTEM_TOPIC_LIST_FROM_NS: i32 = 304;
    /// SEND_MESSAGE_V2: one-letter ext names.
    pub const SEND_MESSAGE_V2: i32 = 310;
    /// UPDATE_NAMESRV_CONFIG: written to every name server.
    pub const UPDATE_NAMESRV_CONFIG: i32 = 318;
    /// SEND_BATCH_MESSAGE: one-letter ext names.
    pub const SEND_BATCH_MESSAGE: i32 = 320;
    /// QUERY_DATA_VERSION: asked by brokers only, never through the proxy.
    pub const QUERY_DATA_VERSION: i32 = 322;
    /// ADD_WRITE_PERM_OF_BROKER: written to every name server.
    pub const ADD_WRITE_PERM_OF_BROKER: i32 = 327;
}

/// What an answer says.
pub mod response {
    /// SUCCESS.
    pub const SUCCESS: i32 = 0;
    /// SYSTEM_ERROR: sync clients retry on another broker.
    pub const SYSTEM_ERROR: i32 = 1;
    /// SYSTEM_BUSY: fails at the client without a retry.
    pub const SYSTEM_BUSY: i32 = 2;
    /// REQUEST_CODE_NOT_SUPPORTED.
    pub const REQUEST_CODE_NOT_SUPPORTED: i32 = 3;
    /// FLUSH_DISK_TIMEOUT: stored, the disk flush was not confirmed in time.
    pub const FLUSH_DISK_TIMEOUT: i32 = 10;
    /// SLAVE_NOT_AVAILABLE: stored, no slave has it.
    pub const SLAVE_NOT_AVAILABLE: i32 = 11;
    /// FLUSH_SLAVE_TIMEOUT: stored, the slave did not confirm in time.
    pub const FLUSH_SLAVE_TIMEOUT: i32 = 12;
    /// MESSAGE_ILLEGAL: the sender's fault, not retried by clients.
    pub const MESSAGE_ILLEGAL: i32 = 13;
    /// SERVICE_NOT_AVAILABLE: slave, full disk or shutdown.
    pub const SERVICE_NOT_AVAILABLE: i32 = 14;
    /// NO_PERMISSION.
    pub const NO_PERMISSION: i32 = 16;
    /// TOPIC_NOT_EXIST.
    pub const TOPIC_NOT_EXIST: i32 = 17;
    /// SUBSCRIPTION_GROUP_NOT_EXIST.
    pub const SUBSCRIPTION_GROUP_NOT_EXIST: i32 = 26;
}
