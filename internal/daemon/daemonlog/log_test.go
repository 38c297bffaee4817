package daemonlog

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// TestLinesForTheJournalHavePriorities, which journald reads at the start of a line.
func TestLinesForTheJournalHavePriorities(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(write.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	for stream, want := range map[string]bool{fmt.Sprintf("%d:%d", st.Dev, st.Ino): true,
		fmt.Sprintf("%d:%d", st.Dev, st.Ino+1): false, "": false, "x": false} {
		if got := isJournald(write, stream); got != want {
			t.Errorf("JOURNAL_STREAM=%q: %v, want %v", stream, got, want)
		}
	}
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	log.SetFormatter(journaldFormat{&logrus.TextFormatter{DisableColors: true, DisableTimestamp: true}})
	log.WithField("bindings", 2).Info("tidied")
	log.Warn("blind")
	log.Error("internal error: no")
	if want := "<6>level=info msg=tidied bindings=2\n<4>level=warning msg=blind\n<3>level=error " +
		"msg=\"internal error: no\"\n"; out.String() != want {
		t.Errorf("the journal gets\n%s, want\n%s", out.String(), want)
	}
}
