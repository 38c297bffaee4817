{{- /* wholeNumbers makes each number of a table a whole one, as every number of the configuration is. Helm
reads each number of a file as one with a fraction, which the nodes would not take. */ -}}
{{- define "wholeNumbers" -}}
{{- range $key, $value := . }}
{{- if kindIs "float64" $value }}{{ $_ := set $ $key (int64 $value) }}{{ end }}
{{- if kindIs "map" $value }}{{ include "wholeNumbers" $value }}{{ end }}
{{- if kindIs "slice" $value }}{{ range $value }}{{ if kindIs "map" . }}{{ include "wholeNumbers" . }}{{ end }}{{ end }}{{ end }}
{{- end }}
{{- end -}}

{{- /* toml is the text that a kind of nodes gets: root, kind ({} for the default). */ -}}
{{- define "toml" -}}
{{- $policy := mergeOverwrite (deepCopy .root.Values.policy) (get .kind "policy" | default dict | deepCopy) }}
{{- $tables := mergeOverwrite (deepCopy .root.Values.config) (get .kind "config" | default dict | deepCopy) }}
{{- $own := list }}
{{- range concat (list "setup") .root.Values.kinds }}
{{- $pod := "gpuledger-setup-?????" }}{{ if kindIs "map" . }}{{ $pod = printf "gpuledger-setup-%s-?????" .name }}{{ end }}
{{- $own = append $own (dict "namespace" $.root.Release.Namespace "pod" $pod "container" "install") }}
{{- end }}
{{- range list "gpuledger-dra-?????" "gpuledger-device-plugin-?????" }}
{{- $own = append $own (dict "namespace" $.root.Release.Namespace "pod" . "container" "agent") }}
{{- end }}
{{- $_ := set $policy "exempt" (concat $own (get $policy "exempt" | default list)) }}
{{- if .root.Values.scheduler.enabled }}
{{- $trust := get $tables "annotations" | default dict }}
{{- if ne (get $trust "trust" | default "adopt") "adopt" }}
{{- fail "scheduler.enabled needs annotations.trust = \"adopt\" on the nodes: remove config.annotations.trust" }}
{{- end }}
{{- $_ := set $tables "annotations" (merge (dict "trust" "adopt") $trust) }}
{{- end }}
{{- $all := merge (dict "policy" $policy) $tables }}
{{- include "wholeNumbers" $all }}
{{- toToml $all }}
{{- end -}}

{{- /* selects is not empty if a node selector selects a node: selector, labels. */ -}}
{{- define "selects" -}}
{{- $labels := .labels }}{{ $all := true }}
{{- range $label, $value := .selector }}{{ if ne (get $labels $label) $value }}{{ $all = false }}{{ end }}{{ end }}
{{- if $all }}yes{{ end }}
{{- end -}}

{{- /* nodeMode is the mode of a node: root, labels. */ -}}
{{- define "nodeMode" -}}
{{- $mode := .root.Values.policy.mode }}{{ $found := false }}{{ $labels := .labels }}
{{- range .root.Values.kinds }}
{{- if and (not $found) (include "selects" (dict "selector" .nodeSelector "labels" $labels)) }}{{ $found = true }}{{ $mode = get (get . "policy" | default dict) "mode" | default $mode }}{{ end }}
{{- end }}
{{- $mode }}
{{- end -}}

{{- /* keptPolicy is not empty if this release has the policy of the scheduler's annotations without
having the scheduler any more. Nodes trust these annotations until they have the new configuration, which
takes minutes, and longer on a node that is down. Nodes that the chart does not set up trust them until
an administrator changes that. */ -}}
{{- define "keptPolicy" -}}
{{- if and (not .Values.scheduler.enabled) (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}
{{- $policy := lookup "admissionregistration.k8s.io/v1" "ValidatingAdmissionPolicy" "" "allocations.gpuledger.dev" }}
{{- $of := dig "metadata" "annotations" (dict) $policy }}
{{- if and (eq (get $of "meta.helm.sh/release-name") .Release.Name) (eq (get $of "meta.helm.sh/release-namespace") .Release.Namespace) }}yes{{ end }}
{{- end }}
{{- end -}}

{{- define "whileUninstalling" -}}
helm.sh/hook: {{ .when }}
helm.sh/hook-weight: "-1"
helm.sh/hook-delete-policy: {{ .policy }}
{{- end -}}

{{- /* tolerationsUp are the chart's tolerations for pods of no DaemonSet: root, notReady. They keep such a
pod off nodes that are down: a toleration of all taints also tolerates node.kubernetes.io/unreachable. So
NoExecute is tolerated by name only. One of these is not-ready for the uninstall's Job (notReady): it
restarts the engine of its own node, and has to go on. A toleration with a value that the taint never has
tolerates nothing. It keeps the API server from adding one. */ -}}
{{- define "tolerationsUp" -}}
{{- $all := list }}
{{- range list "not-ready" "unreachable" }}
{{- $taint := dict "key" (printf "node.kubernetes.io/%s" .) "operator" "Equal" "value" "never" "effect" "NoExecute" }}
{{- if and (eq . "not-ready") $.notReady }}{{ $taint = dict "key" "node.kubernetes.io/not-ready" "operator" "Exists" "effect" "NoExecute" }}{{ end }}
{{- $all = append $all $taint }}
{{- end }}
{{- range .root.Values.tolerations }}
{{- $key := get . "key" | default "" }}{{ $effect := get . "effect" | default "" }}
{{- if and (not $key) (not $effect) }}
{{- $all = append $all (merge (dict "effect" "NoSchedule") .) }}
{{- else if not (or (eq $key "node.kubernetes.io/unreachable") (and (not $key) (eq $effect "NoExecute"))) }}
{{- $all = append $all . }}
{{- end }}
{{- end }}
{{- toJson $all }}
{{- end -}}

{{- /* nodesOf chooses the nodes of a Deployment: root, part (its values). An image that is never pulled is
on the nodes of the chart alone. */ -}}
{{- define "nodesOf" }}
{{- $selector := .part.nodeSelector }}{{ $tolerations := .part.tolerations | default list | toJson }}
{{- if and (eq .root.Values.image.pullPolicy "Never") (not $selector) }}
{{- $selector = .root.Values.nodeSelector }}
{{- if not .part.tolerations }}{{ $tolerations = include "tolerationsUp" (dict "root" .root "notReady" false) }}{{ end }}
{{- end }}
      {{- with $selector }}
      nodeSelector: {{ toJson . }}
      {{- end }}
      tolerations: {{ $tolerations }}
{{- end -}}

{{- /* setupDaemonSet is the set-up's DaemonSet of a kind of nodes: root, name, key, nodeSelector, not (nodes of other kinds). */ -}}
{{- define "setupDaemonSet" -}}
{{- $v := .root.Values.setup -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
  updateStrategy:
    rollingUpdate: {maxUnavailable: {{ $v.maxUnavailable }}}
  template:
    metadata:
      labels: {app.kubernetes.io/name: {{ .name }}, app.kubernetes.io/component: setup}
    spec:
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets: {{ toJson . }}
      {{- end }}
      nodeSelector: {{ toJson .nodeSelector }}
      {{- with .not }}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions: {{ toJson . }}
      {{- end }}
      tolerations: {{ toJson .root.Values.tolerations }}
      {{- with .root.Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with .root.Values.seLinuxOptions }}
      securityContext: {seLinuxOptions: {{ toJson . }}}
      {{- end }}
      {{- if $v.install }}
      hostPID: true # the node's programs are run in the node's namespaces
      {{- end }}
      automountServiceAccountToken: false # it connects to nothing
      {{- if $v.install }}
      initContainers:
        - name: install
          image: {{ include "image" $v.image | quote }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          args: {{ concat (list "install" (printf "--engine=%s" $v.engine)) ($v.asDefault | ternary (list "--as-default") list) (list "--cluster=/cluster/cluster.toml") | toJson }}
          securityContext: {privileged: true} # it installs on the node's own file system
          resources:
            requests: {cpu: 10m, memory: 32Mi}
            limits: {memory: 256Mi}
          volumeMounts:
            - {name: node, mountPath: /host, mountPropagation: HostToContainer}
            - {name: cluster, mountPath: /cluster, readOnly: true}
      {{- end }}
      containers:
        - name: config
          image: {{ include "image" $v.image | quote }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          args: [config, --cluster=/cluster/cluster.toml]
          readinessProbe: # its output is in the pod's events
            exec: {command: [/gpuledger-setup, ready, --cluster=/cluster/cluster.toml]}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 2 # the probe may run before the container has looked at a change
          securityContext: # root without capabilities: it writes one file in /etc/gpuledger
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
            seccompProfile: {type: RuntimeDefault}
          resources:
            requests: {cpu: 1m, memory: 16Mi}
            limits: {memory: 64Mi}
          volumeMounts:
            - {name: etc, mountPath: /etc/gpuledger}
            - {name: cluster, mountPath: /cluster, readOnly: true}
      volumes:
        {{- if $v.install }}
        - {name: node, hostPath: {path: /, type: Directory}}
        {{- end }}
        - {name: etc, hostPath: {path: /etc/gpuledger, type: DirectoryOrCreate}}
        - {name: cluster, configMap: {name: gpuledger-config, items: [{key: {{ .key }}, path: cluster.toml}]}}
{{- end -}}
