//go:build !linux

package api

const victimVariable = "SANDBOX_RUN_TEST_VICTIM"

func victim()    {}
func closeReal() {}
