//! Levels and subsystems of the log that libfabric keeps for providers.

constants! {
    u32 {
        FI_LOG_WARN = 0;
        FI_LOG_TRACE = 1;
        FI_LOG_INFO = 2;
        FI_LOG_DEBUG = 3;

        FI_LOG_CORE = 0;
        FI_LOG_FABRIC = 1;
        FI_LOG_DOMAIN = 2;
        FI_LOG_EP_CTRL = 3;
        FI_LOG_EP_DATA = 4;
        FI_LOG_AV = 5;
        FI_LOG_CQ = 6;
        FI_LOG_EQ = 7;
        FI_LOG_MR = 8;
        FI_LOG_CNTR = 9;
    }
}
