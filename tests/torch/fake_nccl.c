/* A libnccl.so.2 that knows its version: -DVERSION=22703; -DOLD leaves out a function that newer releases have. With
   -DDIAGNOSES it prints the lines of DISTCHECK_FAKE_NCCL as it makes a communicator of all GPUs, if it is asked to
   diagnose them, without a flush, as NCCL does; "hang" and "crash" in place of lines are faults, "fail" is an error. */
int ncclGetVersion(int *version);
int ncclGetVersion(int *version) { *version = VERSION; return 0; }
int ncclAllReduce(void);
int ncclAllReduce(void) { return 0; }
#ifndef OLD
int ncclCommWindowRegister(void);
int ncclCommWindowRegister(void) { return 0; }
#endif
#ifdef DIAGNOSES
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int ncclCommInitAll(void **comms, int number, const int *devices);
const char *ncclGetErrorString(int code);
const char *ncclGetErrorString(int code) { return code ? "unhandled cuda error" : "no error"; }
int ncclCommInitAll(void **comms, int number, const int *devices) {
  const char *says = getenv("DISTCHECK_FAKE_NCCL"), *asked = getenv("NCCL_RUN_DIAGNOSTICS");
  if (!says || !asked || strcmp(asked, "1") || devices || !comms || number < 1) return 0;
  if (!strcmp(says, "hang")) sleep(600);
  if (!strcmp(says, "crash")) abort();
  printf("%s\n", says);
  return !strcmp(says, "fail");
}
#endif
