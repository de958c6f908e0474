// Package faults makes the errors of the backends that run programs under our own init: the stage, the object, the cause and the next step.
//
// Place in the flow. Below pkg/sandbox/internal/{rootfs,rootless,measure,box} and the backends native, oci and process.
//
// Lifecycle. None: functions of their arguments.
//
// Concurrency. Safe for concurrent use.
//
// Limits. It knows the stages and errnos that an init reports; errors of other processes get the general next step.
package faults
