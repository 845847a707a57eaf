{{- define "forebay.labels" -}}
app.kubernetes.io/name: forebay
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "forebay.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.pool.user }}
  runAsGroup: {{ .Values.pool.user }}
  fsGroup: {{ .Values.pool.user }}
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "forebay.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
