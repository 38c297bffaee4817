package daemon

import (
	"fmt"
	"os"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// newLog writes to standard error. Where that is the journal, each line says how important it is, and leaves the time to it.
func New(level logrus.Level) *logrus.Logger {
	log := logrus.New()
	log.SetOutput(os.Stderr)
	log.SetLevel(level)
	if isJournald(os.Stderr, os.Getenv("JOURNAL_STREAM")) {
		log.SetFormatter(journaldFormat{&logrus.TextFormatter{DisableColors: true, DisableTimestamp: true}})
	}
	return log
}

// isJournal reports whether a file is the stream that systemd says is the journal's, by its device and inode (systemd.exec(5)): a
// program further down may have inherited the variable and not the stream.
func isJournald(f *os.File, stream string) bool {
	var st unix.Stat_t
	return stream != "" && unix.Fstat(int(f.Fd()), &st) == nil && stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// journalFormat puts the level before a line, as sd-daemon(3) has it.
type journaldFormat struct{ logrus.Formatter }

func (j journaldFormat) Format(e *logrus.Entry) ([]byte, error) {
	line, err := j.Formatter.Format(e)
	return append([]byte(priorities[e.Level]), line...), err
}

var priorities = map[logrus.Level]string{logrus.PanicLevel: "<2>", logrus.FatalLevel: "<2>", logrus.ErrorLevel: "<3>", logrus.WarnLevel: "<4>", logrus.InfoLevel: "<6>",
	logrus.DebugLevel: "<7>", logrus.TraceLevel: "<7>"}

// remark is what is said when it is new, and when it is over.
type Condition struct {
	Log   *logrus.Logger // nil: nobody hears it
	holds bool
}

// heard says what follows from an error, or that it is over.
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
