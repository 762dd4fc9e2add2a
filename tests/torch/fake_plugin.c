/* A plugin of NCCL: -DSYMBOL=ncclNetPlugin_v8 names the interface that it exports; -DHANG never finishes loading. */
#include <unistd.h>

int SYMBOL = 1;

#ifdef HANG
__attribute__((constructor)) static void hang(void) { for (;;) pause(); }
#endif
