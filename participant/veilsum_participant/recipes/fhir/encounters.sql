-- FHIR R4 bulk export, one row an encounter that was neither cancelled nor entered in error. Tables: encounter, patient.
WITH visits AS (
    SELECT
        regexp_extract(json->>'$.subject.reference', 'Patient/([^/]+)$', 1) AS patient,
        CASE json->>'$.class.code'
            WHEN 'IMP' THEN 'inpatient'
            WHEN 'AMB' THEN 'outpatient'
            WHEN 'EMER' THEN 'emergency'
        END AS kind,
        try_cast(substr(json->>'$.period.start', 1, 10) AS DATE) AS begins,
        try_cast(substr(json->>'$.period.end', 1, 10) AS DATE) AS ends
    FROM encounter
    WHERE json->>'$.resourceType' = 'Encounter' AND coalesce(json->>'$.status', '') NOT IN ('cancelled', 'entered-in-error')
),
born AS (
    SELECT json->>'$.id' AS patient, any_value(try_cast(substr(json->>'$.birthDate', 1, 4) AS DOUBLE)) AS year
    FROM patient
    WHERE json->>'$.resourceType' = 'Patient'
    GROUP BY ALL
)
SELECT
    visits.patient,
    visits.kind,
    CAST(EXTRACT(EPOCH FROM visits.ends) AS DOUBLE) / 86400 - CAST(EXTRACT(EPOCH FROM visits.begins) AS DOUBLE) / 86400 AS days,
    EXTRACT(YEAR FROM visits.begins) - born.year AS age
FROM visits
JOIN born ON born.patient = visits.patient
