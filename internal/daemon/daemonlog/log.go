// Package daemonlog is gpuledgerd's log: its format, and what several managers log in the same way.
package daemonlog

import (
	"fmt"
	"os"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// New writes to standard error. If that is the systemd journal, each line begins with its priority
// and has no time, which the journal adds.
func New(level logrus.Level) *logrus.Logger {
	log := logrus.New()
	log.SetOutput(os.Stderr)
	log.SetLevel(level)
	if isJournald(os.Stderr, os.Getenv("JOURNAL_STREAM")) {
		log.SetFormatter(journaldFormat{&logrus.TextFormatter{DisableColors: true, DisableTimestamp: true}})
	}
	return log
}

// isJournald reports whether a file is the stream of the systemd journal, by its device and inode
// (systemd.exec(5)). A process may have inherited the variable without the stream.
func isJournald(f *os.File, stream string) bool {
	var st unix.Stat_t
	return stream != "" && unix.Fstat(int(f.Fd()), &st) == nil &&
		stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// journaldFormat puts the priority before a line, as sd-daemon(3) describes.
type journaldFormat struct{ logrus.Formatter }

func (j journaldFormat) Format(e *logrus.Entry) ([]byte, error) {
	line, err := j.Formatter.Format(e)
	return append([]byte(priorities[e.Level]), line...), err
}

var priorities = map[logrus.Level]string{logrus.PanicLevel: "<2>", logrus.FatalLevel: "<2>",
	logrus.ErrorLevel: "<3>", logrus.WarnLevel: "<4>", logrus.InfoLevel: "<6>",
	logrus.DebugLevel: "<7>", logrus.TraceLevel: "<7>"}

// Condition is a problem that is logged when it begins and when it is over.
type Condition struct {
	Log   *logrus.Logger // nil: it is not logged
	holds bool
}

// Update logs what follows from an error if it is new, or that it is over.
func (r *Condition) Update(err error, follows string) {
	switch was := r.holds; {
	case r.Log == nil:
	case err != nil && !was:
		r.Log.WithError(err).Warn(follows)
	case err == nil && was:
		r.Log.Info("over: " + follows)
	}
	r.holds = err != nil
}

// FindingFields are the fields of a log line about a finding.
func FindingFields(f grant.Finding) logrus.Fields {
	return logrus.Fields{"finding": f.Kind, "gpu": f.GPU, "container": grant.Printable(f.User.Container),
		"grant": f.Grant}
}
