package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// maxReview bounds a review. The API server takes no larger object.
const maxReview = 8 << 20

// Mux returns the server's paths. ready says why it cannot serve yet.
func (h Handler) Mux(ready func() error) *http.ServeMux {
	mux := http.NewServeMux()
	mutate, validate := h.answer(h.mutate), h.answer(h.validate)
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
func (h Handler) answer(do func(*corev1.Pod, *admissionv1.AdmissionResponse) error) http.HandlerFunc {
	own := hash(h.Rules.Dialect)
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
		if err == nil {
			err = json.Unmarshal(text, &review)
		}
		if err != nil || review.Request == nil {
			http.Error(w, "cannot read the AdmissionReview", http.StatusBadRequest)
			return
		}
		response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if names := r.PathValue("names"); names != "" && names != own {
			err = errOtherNames
		} else {
			err = h.review(review.Request, response, do)
		}
		if err != nil {
			response.Allowed, response.Patch, response.PatchType, response.Warnings = false, nil, nil, nil
			response.Result = &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
				Message: "gpuledger: " + err.Error()}
			if errors.Is(err, errOtherNames) {
				response.Result.Code = http.StatusServiceUnavailable
				response.Result.Reason = metav1.StatusReasonServiceUnavailable
			}
			h.Log.Info("refused", "namespace", review.Request.Namespace, "pod", review.Request.Name, "error",
				err)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta,
			Response: response})
	}
}

func (h Handler) review(q *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse,
	do func(*corev1.Pod, *admissionv1.AdmissionResponse) error) error {
	if q.Operation != admissionv1.Create || q.Resource.Resource != "pods" || q.SubResource != "" {
		return nil
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(q.Object.Raw, pod); err != nil {
		return fmt.Errorf("cannot read the pod: %w", err)
	}
	pod.Namespace = q.Namespace
	return do(pod, response)
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
