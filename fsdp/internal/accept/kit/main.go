package kit

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package and requires that they leave no goroutine. If FSDP_TEST_DEVICE is "far" or "gpu", their
// models compute on that device in place of the processor.
func Main(m *testing.M) {
	switch d := os.Getenv("FSDP_TEST_DEVICE"); d {
	case "far":
		UseFarDevice()
	case "gpu":
		os.Setenv("FSDP_DOUBLE_NCCL_TREE", "1") // sums over ranks as the host adds: strategies have the same bits
		UseGPU()
		os.Exit(m.Run()) // models that tests do not close have goroutines there
	case "":
	default:
		panic("FSDP_TEST_DEVICE is " + d + ", want far or gpu")
	}
	goleak.VerifyTestMain(m)
}
