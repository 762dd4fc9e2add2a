/* A libtorch_cuda.so that calls NCCL; -DALONE makes one with NCCL linked into it. */
int ncclGetVersion(int *version);
int ncclAllReduce(void);
int ncclCommWindowRegister(void);
int torch_uses_nccl(void);
#ifdef ALONE
int torch_uses_nccl(void) { return 0; }
#else
int torch_uses_nccl(void) { int version; return ncclGetVersion(&version) + ncclAllReduce() + ncclCommWindowRegister(); }
#endif
