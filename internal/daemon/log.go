package daemon

import (
	"fmt"
	"os"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// newLog writes to standard error. Where that is the journal, each line says how important it is, and leaves the time to it.
func newLog(level logrus.Level) *logrus.Logger {
	log := logrus.New()
	log.SetOutput(os.Stderr)
	log.SetLevel(level)
	if isJournal(os.Stderr, os.Getenv("JOURNAL_STREAM")) {
		log.SetFormatter(journalFormat{&logrus.TextFormatter{DisableColors: true, DisableTimestamp: true}})
	}
	return log
}

// isJournal reports whether a file is the stream that systemd says is the journal's, by its device and inode (systemd.exec(5)): a
// program further down may have inherited the variable and not the stream.
func isJournal(f *os.File, stream string) bool {
	var st unix.Stat_t
	return stream != "" && unix.Fstat(int(f.Fd()), &st) == nil && stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// journalFormat puts the level before a line, as sd-daemon(3) has it.
type journalFormat struct{ logrus.Formatter }

func (j journalFormat) Format(e *logrus.Entry) ([]byte, error) {
	line, err := j.Formatter.Format(e)
	return append([]byte(priorities[e.Level]), line...), err
}

var priorities = map[logrus.Level]string{logrus.PanicLevel: "<2>", logrus.FatalLevel: "<2>", logrus.ErrorLevel: "<3>", logrus.WarnLevel: "<4>", logrus.InfoLevel: "<6>",
	logrus.DebugLevel: "<7>", logrus.TraceLevel: "<7>"}

// remark is what is said when it is new, and when it is over.
type remark struct {
	log    *logrus.Logger // nil: nobody hears it
	stands bool
}

// heard says what follows from an error, or that it is over.
func (r *remark) heard(err error, follows string) {
	switch was := r.stands; {
	case r.log == nil:
	case err != nil && !was:
		r.log.WithError(err).Warn(follows)
	case err == nil && was:
		r.log.Info("over: " + follows)
	}
	r.stands = err != nil
}
