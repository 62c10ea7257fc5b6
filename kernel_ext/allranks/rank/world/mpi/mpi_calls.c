/* What MLX calls in MPI's place, in a rank whose world is to be aborted in place.

   MLX does not look at what MPI returns (0.32.4), so the result of a call that failed would be whatever its memory
   held. Here such a result becomes NaN, or zeros where its type has no NaN, and `failed` tells Python. Compiled by
   mpi_functions.py, which sets all pointers before MLX gets any of these functions. */

#include <string.h>

typedef void *P;

int (*real_allreduce)(const void *, void *, int, P, P, P);
int (*real_allgather)(const void *, int, P, void *, int, P, P);
int (*real_send)(const void *, int, P, int, int, P);
int (*real_recv)(void *, int, P, int, int, P, P);
int (*real_split)(P, int, int, P *);
int (*real_free)(P *);
int (*real_type_size)(P, int *);
int (*real_comm_size)(P, int *);
int (*real_is_revoked)(P, int *);

#define INTEGERS 16
#define GROUPS 256

P integers[INTEGERS];  /* types without a NaN */
P groups[GROUPS];      /* communicators that MLX made by Group.split */
P current;             /* the communicator of the world */
int leaving;           /* the world and its groups are being revoked */
unsigned char *failed; /* 1: a call failed; 2: one of the current world */
int inside;            /* collectives, sends and receives inside MPI, without splits and frees of communicators */

static int returned(int code) {
  __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  return code;
}

#define CALL(call) (__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST), returned(call))

static void note(P communicator) {
  int own = communicator == current;
  for (int i = 0; i < GROUPS && !own; i++) own = communicator && groups[i] == communicator;
  __atomic_fetch_or(failed, own ? 3 : 1, __ATOMIC_SEQ_CST);
}

static void spoil(void *result, long count, P type, P communicator) {
  int size = 0, byte = 0xFF;
  real_type_size(type, &size);
  for (int i = 0; i < INTEGERS; i++)
    if (integers[i] == type) byte = 0;
  memset(result, byte, count * size);
  note(communicator);
}

int allranks_allreduce(const void *from, void *to, int count, P type, P op, P communicator) {
  if (CALL(real_allreduce(from, to, count, type, op, communicator))) spoil(to, count, type, communicator);
  return 0;
}

int allranks_allgather(const void *from, int count, P type, void *to, int each, P to_type, P communicator) {
  if (CALL(real_allgather(from, count, type, to, each, to_type, communicator))) {
    int size = 1;
    real_comm_size(communicator, &size);
    spoil(to, (long)each * size, to_type, communicator);
  }
  return 0;
}

int allranks_send(const void *from, int count, P type, int to, int tag, P communicator) {
  if (CALL(real_send(from, count, type, to, tag, communicator))) note(communicator);
  return 0;
}

int allranks_recv(void *to, int count, P type, int from, int tag, P communicator, P status) {
  if (CALL(real_recv(to, count, type, from, tag, communicator, status))) spoil(to, count, type, communicator);
  return 0;
}

int allranks_split(P communicator, int color, int key, P *made) {
  int code = real_split(communicator, color, key, made);
  for (int i = 0; i < GROUPS && !code; i++)
    if (!groups[i]) {
      groups[i] = *made;
      break;
    }
  return code;
}

/* What has failed since the last time. */
int allranks_take(void) { return __atomic_exchange_n(failed, 0, __ATOMIC_SEQ_CST); }

/* One that is or will be revoked is never freed: that might wait for ranks which are no more. */
int allranks_free(P *communicator) {
  int revoked = leaving;
  for (int i = 0; i < GROUPS; i++)
    if (groups[i] == *communicator) groups[i] = 0;
  if (!revoked) real_is_revoked(*communicator, &revoked);
  return revoked ? 0 : real_free(communicator);
}

int allranks_nothing(void) { return 0; }
