{{- define "veilsum.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of a part's objects. Takes (dict "root" $ "part" "coordinator"). */}}
{{- define "veilsum.name" -}}
{{ include "veilsum.fullname" .root }}-{{ .part }}
{{- end -}}

{{/* What selects a part's pods; without a part, every pod of the release. */}}
{{- define "veilsum.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .part }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "veilsum.labels" -}}
{{ include "veilsum.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: veilsum
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Takes (dict "root" $ "image" image "key" "coordinator.image"). */}}
{{- define "veilsum.image" -}}
{{- $repository := required (printf "%s.repository: name the image, for example registry.example/veilsum" .key) .image.repository -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}
