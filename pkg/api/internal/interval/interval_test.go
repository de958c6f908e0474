package interval

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		stop := Start(time.Second, func() { n++ })
		time.Sleep(3500 * time.Millisecond)
		stop()
		stop()
		if n != 3 {
			t.Errorf("%d calls in 3.5 intervals", n)
		}
	})
}
