-- OMOP CDM 5.4: one row a person who was observed, from all of the tables: who they are, what was ever recorded of conditions and
-- drugs (see conditions.sql and drugs.sql), mean measurements (see measurements.sql) and numbers of visits (see visits.sql).
WITH @persons,
@period,
@conditions,
@drugs,
@measured,
means AS (
    SELECT
        person_id,
        avg(CASE WHEN kind = 'hba1c' THEN value END) AS hba1c,
        avg(CASE WHEN kind = 'creatinine' THEN value END) AS creatinine,
        avg(CASE WHEN kind = 'systolic' THEN value END) AS systolic,
        avg(CASE WHEN kind = 'bmi' THEN value END) AS bmi
    FROM measured
    GROUP BY person_id
),
@concepts,
@visits,
visited AS (
    SELECT
        visits.person_id,
        sum(CASE WHEN concepts.kind IN ('inpatient', 'emergency and inpatient') THEN 1 ELSE 0 END) AS stays,
        sum(CASE WHEN concepts.kind IN ('emergency', 'emergency and inpatient') THEN 1 ELSE 0 END) AS emergencies
    FROM visits
    JOIN concepts ON concepts.concept_id = visits.visit_concept_id
    GROUP BY visits.person_id
)
SELECT
    persons.person_id,
    CAST(EXTRACT(YEAR FROM period.begins) AS float8) - persons.year_of_birth AS age,
    CASE persons.gender_concept_id WHEN 8507 THEN 'male' WHEN 8532 THEN 'female' END AS sex,
    period.days AS days_observed,
    CASE WHEN conditions.diabetes = 1 THEN 'yes' ELSE 'no' END AS diabetes,
    CASE WHEN conditions.hypertension = 1 THEN 'yes' ELSE 'no' END AS hypertension,
    CASE WHEN conditions.heart_failure = 1 THEN 'yes' ELSE 'no' END AS heart_failure,
    CASE WHEN conditions.copd = 1 THEN 'yes' ELSE 'no' END AS copd,
    CASE WHEN drugs.metformin = 1 THEN 'yes' ELSE 'no' END AS metformin,
    CASE WHEN drugs.insulin = 1 THEN 'yes' ELSE 'no' END AS insulin,
    CASE WHEN drugs.statin = 1 THEN 'yes' ELSE 'no' END AS statin,
    means.hba1c,
    means.creatinine,
    means.systolic,
    means.bmi,
    coalesce(visited.stays, 0) AS stays,
    coalesce(visited.emergencies, 0) AS emergencies,
    CASE WHEN death.person_id IS NULL THEN 'no' ELSE 'yes' END AS died
FROM persons
JOIN period ON period.person_id = persons.person_id
LEFT JOIN conditions ON conditions.person_id = persons.person_id
LEFT JOIN drugs ON drugs.person_id = persons.person_id
LEFT JOIN means ON means.person_id = persons.person_id
LEFT JOIN visited ON visited.person_id = persons.person_id
LEFT JOIN (SELECT DISTINCT person_id FROM death) AS death ON death.person_id = persons.person_id
