/* A libnccl.so.2 that knows its version: -DVERSION=22703; -DOLD leaves out a function that newer releases have. */
int ncclGetVersion(int *version);
int ncclGetVersion(int *version) { *version = VERSION; return 0; }
int ncclAllReduce(void);
int ncclAllReduce(void) { return 0; }
#ifndef OLD
int ncclCommWindowRegister(void);
int ncclCommWindowRegister(void) { return 0; }
#endif
