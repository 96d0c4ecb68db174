-- FHIR R4 bulk export, one row a Patient. Tables: patient, condition, observation, encounter; each has the column json, a resource a row.
-- Conditions by SNOMED CT or ICD-10, whatever their clinical status, unless refuted or entered in error; observations by LOINC in the
-- UCUM unit named here, the mean of those that are final, amended or corrected; systolic pressure also as a panel's component.
WITH persons AS (
    SELECT
        json->>'$.id' AS patient,
        any_value(json->>'$.gender') AS sex,
        any_value(try_cast(substr(json->>'$.birthDate', 1, 4) AS INTEGER)) AS birth_year,
        bool_or(
            coalesce(json->>'$.deceasedBoolean' = 'true', false) OR json->>'$.deceasedDateTime' IS NOT NULL
        ) AS deceased
    FROM patient
    WHERE json->>'$.resourceType' = 'Patient'
    GROUP BY ALL
),
coded AS (
    SELECT
        regexp_extract(json->>'$.subject.reference', 'Patient/([^/]+)$', 1) AS patient,
        json->>'$.verificationStatus.coding[0].code' AS status,
        unnest(json_extract(json, '$.code.coding[*]')) AS coding
    FROM condition
    WHERE json->>'$.resourceType' = 'Condition'
),
named AS (
    SELECT
        patient,
        coding->>'$.code' AS code,
        coding->>'$.system' = 'http://snomed.info/sct' AS snomed,
        starts_with(coding->>'$.system', 'http://hl7.org/fhir/sid/icd-10') AS icd
    FROM coded
    WHERE status IS NULL OR status NOT IN ('refuted', 'entered-in-error')
),
conditions AS (
    SELECT
        patient,
        bool_or((snomed AND code IN ('73211009', '44054006', '46635009')) OR (icd AND regexp_matches(code, '^E1[0-4]'))) AS diabetes,
        bool_or((snomed AND code IN ('38341003', '59621000')) OR (icd AND regexp_matches(code, '^I1[0-5]'))) AS hypertension,
        bool_or((snomed AND code IN ('84114007', '42343007')) OR (icd AND starts_with(code, 'I50'))) AS heart_failure,
        bool_or((snomed AND code = '13645005') OR (icd AND starts_with(code, 'J44'))) AS copd
    FROM named
    GROUP BY patient
),
measured AS (
    SELECT
        patient,
        avg(value) FILTER (WHERE code = '4548-4' AND unit = '%') AS hba1c,
        avg(value) FILTER (WHERE code = '2160-0' AND unit = 'mg/dL') AS creatinine,
        avg(value) FILTER (WHERE code = '8480-6' AND unit = 'mm[Hg]') AS systolic,
        avg(value) FILTER (WHERE code = '39156-5' AND unit = 'kg/m2') AS bmi
    FROM (
        SELECT
            patient,
            item->>'$.valueQuantity.code' AS unit,
            try_cast(item->>'$.valueQuantity.value' AS DOUBLE) AS value,
            unnest(json_extract(item, '$.code.coding[*]'))->>'$.code' AS code
        FROM (
            SELECT
                regexp_extract(json->>'$.subject.reference', 'Patient/([^/]+)$', 1) AS patient,
                unnest(list_concat([json], json_extract(json, '$.component[*]'))) AS item
            FROM observation
            WHERE json->>'$.resourceType' = 'Observation' AND json->>'$.status' IN ('final', 'amended', 'corrected')
        )
    )
    GROUP BY patient
),
visited AS (
    SELECT
        regexp_extract(json->>'$.subject.reference', 'Patient/([^/]+)$', 1) AS patient,
        count(*) FILTER (WHERE json->>'$.class.code' = 'IMP') AS stays,
        count(*) FILTER (WHERE json->>'$.class.code' = 'EMER') AS emergencies
    FROM encounter
    WHERE json->>'$.resourceType' = 'Encounter' AND coalesce(json->>'$.status', '') NOT IN ('cancelled', 'entered-in-error')
    GROUP BY ALL
)
SELECT
    persons.patient,
    persons.birth_year,
    persons.sex,
    CASE WHEN conditions.diabetes THEN 'yes' ELSE 'no' END AS diabetes,
    CASE WHEN conditions.hypertension THEN 'yes' ELSE 'no' END AS hypertension,
    CASE WHEN conditions.heart_failure THEN 'yes' ELSE 'no' END AS heart_failure,
    CASE WHEN conditions.copd THEN 'yes' ELSE 'no' END AS copd,
    measured.hba1c,
    measured.creatinine,
    measured.systolic,
    measured.bmi,
    coalesce(visited.stays, 0) AS stays,
    coalesce(visited.emergencies, 0) AS emergencies,
    CASE WHEN persons.deceased THEN 'yes' ELSE 'no' END AS died
FROM persons
LEFT JOIN conditions USING (patient)
LEFT JOIN measured USING (patient)
LEFT JOIN visited USING (patient)
WHERE persons.patient IS NOT NULL
