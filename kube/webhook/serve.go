package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Handler answers the API server. Other programs that reach the webhook can ask it the same: an API
// server presents no certificate to webhooks, unless it is configured so. So an answer only says
// what is to become of a pod, and nothing is asked or written for it.
type Handler struct {
	Rules Rules
	Log   *slog.Logger
}

// The paths at which the API server asks: with a hash of the names by which it selects pods, or
// without, if an older version has entered them.
const (
	MutatePath   = "/mutate"
	ValidatePath = "/validate"
)

// Mux returns the server's paths. ready says why it cannot serve yet.
func (h Handler) Mux(ready func() error) *http.ServeMux {
	mux := http.NewServeMux()
	var all intake
	mutate, validate := h.answer(&all, h.mutate), h.answer(&all, h.validate)
	mux.HandleFunc(MutatePath, mutate)
	mux.HandleFunc(MutatePath+"/{names}", mutate)
	mux.HandleFunc(ValidatePath, validate)
	mux.HandleFunc(ValidatePath+"/{names}", validate)
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}

// answer reads a review, and writes what do returns. An error of do refuses the pod.
func (h Handler) answer(all *intake,
	do func(*corev1.Pod, *admissionv1.AdmissionResponse) error) http.HandlerFunc {
	own := hash(h.Rules.Dialect)
	return func(w http.ResponseWriter, r *http.Request) {
		var answer *admissionv1.AdmissionReview
		status := all.take(w, r, func(text []byte) {
			names := r.PathValue("names")
			answer = h.review(text, names == "" || names == own, do)
		})
		if status == http.StatusOK && answer == nil {
			status = http.StatusBadRequest
		}
		if status != http.StatusOK {
			http.Error(w, "cannot read the AdmissionReview", status)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// review returns the answer to a review; nil if the text is none. known says that the API server
// has selected the pod by the names that this process knows.
func (h Handler) review(text []byte, known bool,
	do func(*corev1.Pod, *admissionv1.AdmissionResponse) error) *admissionv1.AdmissionReview {
	var review admissionv1.AdmissionReview
	if json.Unmarshal(text, &review) != nil || review.Request == nil {
		return nil
	}
	q := review.Request
	response := &admissionv1.AdmissionResponse{UID: q.UID, Allowed: true}
	err := errOtherNames
	if known {
		err = decide(q, response, do)
	}
	if err != nil {
		response.Allowed, response.Patch, response.PatchType, response.Warnings = false, nil, nil, nil
		response.Result = &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Message: "gpuledger: " + err.Error()}
		if errors.Is(err, errOtherNames) {
			response.Result.Code = http.StatusServiceUnavailable
			response.Result.Reason = metav1.StatusReasonServiceUnavailable
		}
		h.Log.Info("refused", "namespace", grant.Printable(q.Namespace), "pod", grant.Printable(q.Name),
			"error", err)
	}
	return &admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response}
}

func decide(q *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse,
	do func(*corev1.Pod, *admissionv1.AdmissionResponse) error) error {
	if q.Operation != admissionv1.Create || q.Resource.Resource != "pods" || q.SubResource != "" {
		return nil
	}
	var pod reviewed
	if err := json.Unmarshal(q.Object.Raw, &pod); err != nil {
		return fmt.Errorf("cannot read the pod: %w", err)
	}
	return do(pod.pod(q.Namespace), response)
}

func (h Handler) mutate(pod *corev1.Pod, response *admissionv1.AdmissionResponse) error {
	c, err := h.Rules.changeOf(pod)
	if err != nil || len(c.patch) == 0 {
		return err
	}
	kind := admissionv1.PatchTypeJSONPatch
	response.PatchType, response.Warnings = &kind, c.warnings
	response.Patch, err = json.Marshal(c.patch)
	return err
}

func (h Handler) validate(pod *corev1.Pod, _ *admissionv1.AdmissionResponse) error {
	return h.Rules.refusalOf(pod)
}
